// What a well-meaning client sees: framing, keep-alive, streams, keys, CORS, shutdown.

#include "server/http_server.h"

#include <atomic>
#include <thread>

#include "config/json.h"
#include "server/http_test_util.h"

namespace k3::server {
namespace {

std::string BodyOf(const std::string& response) {
  const size_t end = response.find("\r\n\r\n");
  return end == std::string::npos ? std::string() : response.substr(end + 4);
}

/// The error of a body in OpenAI's shape: its code; empty when the shape is another.
std::string ErrorCode(const std::string& response) {
  const auto body = ParseJson(BodyOf(response), "body");
  if (!body.ok() || body->Find("error") == nullptr) return {};
  const JsonValue& error = *body->Find("error");
  const bool shaped = error.Find("message") && error.Find("message")->string() &&
                      error.Find("type") && error.Find("type")->string() && error.Find("param") &&
                      error.Find("param")->is_null() && error.Find("code");
  return shaped && error.Find("code")->string() ? *error.Find("code")->string() : std::string();
}

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  TestServer server;
  RawClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    client.Send("POST /echo/a%20b?x=1&y=%20 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
    const std::string response = client.ReadResponse();
    EXPECT_TRUE(response.starts_with("HTTP/1.1 200 OK\r\n")) << response;
    EXPECT_NE(response.find("\r\nConnection: keep-alive\r\n"), std::string::npos);
    EXPECT_NE(response.find("\r\nDate: "), std::string::npos);
    EXPECT_EQ(BodyOf(response), "POST|/echo/a b|x=1&y=%20|hello");
  }
  EXPECT_EQ(server.server->connections_count(), 1);
  EXPECT_TRUE(Eventually([&] {
    return server.metrics.Render().find("k3_http_requests_total{code=\"200\"} 3\n") !=
           std::string::npos;
  })) << server.metrics.Render();
}

TEST(HttpServer, BytesMayComeOneByOne) {
  TestServer server;
  RawClient client(server.port());
  const std::string_view request =
      "\r\nPOST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;ext=1\r\nabc\r\n0a\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
  for (const char byte : request) {
    ASSERT_TRUE(client.Send({&byte, 1}));
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  EXPECT_EQ(BodyOf(client.ReadResponse()), "POST|/echo||abc0123456789");
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  TestServer server;
  RawClient client(server.port());
  std::string requests = "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n";
  for (int i = 0; i < 200; ++i) {
    requests += "GET /echo?" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\n\r\n";
  }
  client.Send(requests);
  const auto first = server.Take();
  ASSERT_NE(first, nullptr);
  EXPECT_FALSE(client.ReadSome(50)) << "nothing may overtake the first answer";
  first->Respond(200, "text/plain", "first");
  EXPECT_EQ(BodyOf(client.ReadResponse()), "first");
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(BodyOf(client.ReadResponse()), "GET|/echo|" + std::to_string(i) + "|");
  }
}

TEST(HttpServer, ConnectionsEndAsTheClientAsked) {
  TestServer server;
  for (const std::string_view request :
       {"GET /echo HTTP/1.0\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"}) {
    RawClient client(server.port());
    client.Send(request);
    bool closed = false;
    const std::string response = client.ReadAll(&closed);
    EXPECT_TRUE(closed);
    EXPECT_FALSE(client.was_reset());
    EXPECT_NE(response.find("\r\nConnection: close\r\n"), std::string::npos);
    EXPECT_EQ(BodyOf(response), "GET|/echo||");
  }
  RawClient client(server.port());
  client.Send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(BodyOf(client.ReadResponse()), "GET|/echo||");
  client.Send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(BodyOf(client.ReadResponse()), "GET|/echo||");
}

TEST(HttpServer, HeadHasTheLengthAndNoBody) {
  TestServer server;
  RawClient client(server.port());
  client.Send("HEAD /echo HTTP/1.1\r\nHost: h\r\n\r\nGET /health HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::string head = client.ReadResponse(false);
  EXPECT_NE(head.find("\r\nContent-Length: 12\r\n"), std::string::npos) << head;
  EXPECT_EQ(BodyOf(client.ReadResponse()), "fine");
}

TEST(HttpServer, ContinuesWhenAsked) {
  TestServer server;
  RawClient client(server.port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadResponse(false), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("ok");
  EXPECT_EQ(BodyOf(client.ReadResponse()), "POST|/echo||ok");
}

TEST(HttpServer, StreamsEventsAsTheyCome) {
  TestServer server;
  RawClient client(server.port());
  client.Send("POST /stream HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
  const auto exchange = server.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->StartEvents({{"X-Request-Id", "7"}});
  const std::string head = client.ReadResponse(false);
  EXPECT_TRUE(head.starts_with("HTTP/1.1 200 OK\r\n"));
  for (const std::string_view field :
       {"Content-Type: text/event-stream", "Cache-Control: no-cache", "X-Accel-Buffering: no",
        "Transfer-Encoding: chunked", "X-Request-Id: 7"}) {
    EXPECT_NE(head.find(field), std::string::npos) << field;
  }
  exchange->SendEvent("data: 1\n\n");
  ASSERT_TRUE(client.ReadUntil("9\r\ndata: 1\n\n\r\n"));
  exchange->SendEvent("data: [DONE]\n\n");
  exchange->EndEvents();
  exchange->SendEvent("data: too late\n\n");
  ASSERT_TRUE(client.ReadUntil("\r\n0\r\n\r\n"));
  EXPECT_EQ(client.received(), "9\r\ndata: 1\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  EXPECT_TRUE(Eventually([&] { return exchange->queued_bytes() == 0; }));
  EXPECT_FALSE(exchange->gone());
}

TEST(HttpServer, AStreamOfHttp10EndsWithTheConnection) {
  TestServer server;
  RawClient client(server.port());
  client.Send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto exchange = server.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->StartEvents();
  exchange->SendEvent("data: 1\n\n");
  exchange->EndEvents();
  bool closed = false;
  const std::string response = client.ReadAll(&closed);
  EXPECT_TRUE(closed);
  EXPECT_EQ(response.find("chunked"), std::string::npos);
  EXPECT_EQ(BodyOf(response), "data: 1\n\n");
}

TEST(HttpServer, AForgottenRequestIsAnsweredWith500) {
  TestServer server;
  RawClient client(server.port());
  client.Send("GET /nothing HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::string response = client.ReadResponse();
  EXPECT_TRUE(response.starts_with("HTTP/1.1 500 ")) << response;
  EXPECT_EQ(ErrorCode(response), "internal_error");
  client.Send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  auto exchange = server.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->StartEvents();
  exchange->SendEvent("data: 1\n\n");
  exchange.reset();
  const std::string stream = client.ReadAll();
  EXPECT_EQ(stream.find("0\r\n\r\n"), std::string::npos) << "a broken stream must not look whole";
}

TEST(HttpServer, ASecondAnswerDoesNothing) {
  TestServer server;
  RawClient client(server.port());
  client.Send("GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  const auto exchange = server.Take();
  ASSERT_NE(exchange, nullptr);
  exchange->Respond(404, "text/plain", "a", {{"X-Evil", "1\r\nX-Other: 2"}});
  exchange->Respond(200, "text/plain", "b");
  exchange->StartEvents();
  exchange->SendEvent("data: 1\n\n");
  const std::string response = client.ReadAll();
  EXPECT_TRUE(response.starts_with("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_EQ(response.find("\nX-Other"), std::string::npos);
  EXPECT_EQ(BodyOf(response), "a");
}

TEST(HttpServer, AnswersMayComeFromManyThreads) {
  TestServer server;
  constexpr int kClients = 16;
  constexpr int kEvents = 200;
  std::vector<std::thread> threads;
  std::atomic<int> whole{0};
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&] {
      RawClient client(server.port());
      client.Send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
      if (client.ReadUntil("\r\n0\r\n\r\n")) ++whole;
    });
    threads.emplace_back([&] {
      const auto exchange = server.Take();
      if (!exchange) return;
      exchange->StartEvents();
      for (int event = 0; event < kEvents; ++event) exchange->SendEvent("data: abc\n\n");
      exchange->EndEvents();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(whole, kClients);
}

TEST(HttpServer, AsksForAKeyExceptForHealth) {
  TestServer server({.api_keys = {"first-key", "second"}});
  const auto ask = [&](const std::string& path, const std::string& header) {
    RawClient client(server.port());
    client.Send("GET " + path + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + header + "\r\n");
    return client.ReadAll();
  };
  for (const std::string header :
       {"", "Authorization: Bearer\r\n", "Authorization: Bearer firstkey\r\n",
        "Authorization: Bearer first-ke\r\n", "Authorization: Bearer first-keyfirst-key\r\n",
        "Authorization: Basic first-key\r\n", "Authorization: first-key\r\n"}) {
    const std::string response = ask("/echo", header);
    EXPECT_TRUE(response.starts_with("HTTP/1.1 401 Unauthorized\r\n")) << header << response;
    EXPECT_NE(response.find("\r\nWWW-Authenticate: Bearer\r\n"), std::string::npos);
    EXPECT_EQ(ErrorCode(response), "invalid_api_key");
    EXPECT_NE(response.find("\"type\":\"authentication_error\""), std::string::npos);
  }
  EXPECT_EQ(BodyOf(ask("/echo", "Authorization: Bearer first-key\r\n")), "GET|/echo||");
  EXPECT_EQ(BodyOf(ask("/echo", "authorization: bearer second\r\n")), "GET|/echo||");
  EXPECT_EQ(BodyOf(ask("/health", "")), "fine");
  EXPECT_TRUE(ask("/%68ealth/x", "").starts_with("HTTP/1.1 401"));
}

TEST(HttpServer, ARefusedBodyIsNotReadButTheRefusalArrives) {
  TestServer server({.api_keys = {"key"}});
  RawClient client(server.port());
  client.Send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n");
  client.Send(std::string(3'000'000, 'x'));
  const std::string response = client.ReadResponse();
  EXPECT_EQ(ErrorCode(response), "invalid_api_key") << response;
}

TEST(HttpServer, CorsIsOffUnlessOriginsAreNamed) {
  const std::string preflight =
      "OPTIONS /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close\r\nOrigin: https://a.example\r\n"
      "Access-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization,x-stainless-lang\r\n\r\n";
  const auto ask = [](const HttpServerOptions& options, const std::string& request) {
    TestServer server(options);
    RawClient client(server.port());
    client.Send(request);
    return client.ReadAll();
  };
  const std::string get =
      "GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nOrigin: https://a.example\r\n\r\n";
  EXPECT_EQ(ask({}, preflight).find("Access-Control"), std::string::npos);
  EXPECT_EQ(ask({}, get).find("Access-Control"), std::string::npos);

  const HttpServerOptions one = {.cors_origins = {"https://b.example", "https://a.example"},
                                 .api_keys = {"key"}};
  const std::string answer = ask(one, preflight);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 204 No Content\r\n")) << answer;
  EXPECT_NE(answer.find("\r\nAccess-Control-Allow-Origin: https://a.example\r\n"),
            std::string::npos);
  EXPECT_NE(answer.find("\r\nAccess-Control-Allow-Headers: authorization,x-stainless-lang\r\n"),
            std::string::npos);
  EXPECT_NE(answer.find("\r\nVary: Origin\r\n"), std::string::npos);
  // The page must be able to read that its key is missing.
  const std::string unauthorized = ask(one, get);
  EXPECT_TRUE(unauthorized.starts_with("HTTP/1.1 401"));
  EXPECT_NE(unauthorized.find("\r\nAccess-Control-Allow-Origin: https://a.example\r\n"),
            std::string::npos);

  const HttpServerOptions other = {.cors_origins = {"https://b.example"}};
  EXPECT_EQ(ask(other, get).find("Access-Control"), std::string::npos);
  EXPECT_NE(ask({.cors_origins = {"*"}}, get).find("\r\nAccess-Control-Allow-Origin: *\r\n"),
            std::string::npos);
}

TEST(HttpServer, RefusalsSayWhatWouldBeTaken) {
  TestServer server;
  const auto ask = [&](std::string_view request) {
    RawClient client(server.port());
    client.Send(request);
    return client.ReadAll();
  };
  const std::string coded =
      ask("POST /echo HTTP/1.1\r\nContent-Encoding: gzip\r\nHost: h\r\n"
          "Content-Length: 2\r\n\r\nok");
  EXPECT_TRUE(coded.starts_with("HTTP/1.1 415 Unsupported Media Type\r\n")) << coded;
  EXPECT_EQ(ErrorCode(coded), "unsupported_content_encoding");
  EXPECT_NE(coded.find("\r\nAccept-Encoding: identity\r\n"), std::string::npos) << coded;
  EXPECT_NE(BodyOf(coded).find("found \\\"gzip\\\""), std::string::npos) << coded;
  const std::string plain =
      ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Encoding: Identity\r\n"
          "Connection: close\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(BodyOf(plain), "POST|/echo||ok");
  // These are the client's fault, whatever their first digit says.
  for (const std::string_view request :
       {"GET / HTTP/2.0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n"}) {
    EXPECT_NE(ask(request).find("\"type\":\"invalid_request_error\""), std::string::npos)
        << request;
  }
}

TEST(HttpServer, StopLetsARunningRequestFinish) {
  TestServer server;
  RawClient idle(server.port());
  RawClient half(server.port());
  half.Send("GET /echo HTT");
  RawClient client(server.port());
  client.Send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
  const auto exchange = server.Take();
  ASSERT_NE(exchange, nullptr);
  ASSERT_TRUE(Eventually([&] { return server.server->connections_count() == 3; }));
  std::thread stop([&] { server.server->Stop(kWaitMs); });
  bool closed = false;
  idle.ReadAll(&closed);
  EXPECT_TRUE(closed);
  half.ReadAll(&closed);
  EXPECT_TRUE(closed);
  EXPECT_FALSE(RawClient(server.port()).connected());
  EXPECT_FALSE(exchange->gone());
  exchange->Respond(200, "text/plain", "done");
  const std::string response = client.ReadAll(&closed);
  EXPECT_TRUE(closed);
  EXPECT_NE(response.find("\r\nConnection: close\r\n"), std::string::npos) << response;
  EXPECT_EQ(BodyOf(response), "done");
  stop.join();
  EXPECT_EQ(server.server->connections_count(), 0);
}

TEST(HttpServer, StopEndsWhatIsNotFinishedInTime) {
  TestServer server;
  RawClient client(server.port());
  client.Send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
  const auto exchange = server.Take();
  ASSERT_NE(exchange, nullptr);
  std::atomic<int> calls{0};
  exchange->OnGone([&] { ++calls; });
  server.server->Stop(50);
  EXPECT_TRUE(exchange->gone());
  EXPECT_EQ(calls, 1);
  // An exchange outlives its server without harm.
  server.server.reset();
  exchange->Respond(200, "text/plain", "late");
  exchange->OnGone([&] { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(HttpServer, StartSaysWhatIsWrong) {
  const HttpHandler handler = [](auto, auto) {};
  TestServer server;
  const auto taken = HttpServer::Start({.port = server.port()}, handler);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.status().code(), StatusCode::kUnavailable) << taken.status().ToString();
  EXPECT_NE(taken.status().message().find(std::to_string(server.port())), std::string::npos);
  EXPECT_EQ(HttpServer::Start({.host = "256.0.0.1.invalid"}, handler).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(HttpServer::Start({.api_keys = {""}}, handler).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(HttpServer::Start({.connections_max = 0}, handler).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace k3::server
