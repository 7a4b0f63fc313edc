// The client against our own server, and against servers that answer as they should not.

#include "server/http_client.h"

#include <chrono>
#include <thread>

#include "server/http_test_util.h"

namespace k3::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ExchangePtr = std::shared_ptr<HttpExchange>;  // shared with the server, see HttpHandler

constexpr int64_t kShortMs = 200;
// Timeouts must be seen in time, and not before; far from kWaitMs, also under TSan.
constexpr milliseconds kLate(5000);

HttpUrl LocalUrl(uint16_t port) { return {.host = "127.0.0.1", .port = port}; }

/// Answers one connection with these bytes, once a request's head has come.
class ScriptedServer {
 public:
  enum class Ending { kClose, kWait };

  explicit ScriptedServer(std::string bytes, Ending ending = Ending::kClose)
      : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(fd_, generic, size), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    EXPECT_EQ(getsockname(fd_, generic, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, bytes = std::move(bytes), ending] { Serve(bytes, ending); });
  }
  ~ScriptedServer() {
    thread_.join();
    close(fd_);
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  HttpUrl url() const { return LocalUrl(port_); }

 private:
  void Serve(const std::string& bytes, Ending ending) const {
    const int client = accept(fd_, nullptr, nullptr);
    std::string head;
    char c = 0;
    while (!head.ends_with("\r\n\r\n") && recv(client, &c, 1, 0) == 1) head += c;
    send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    // Until the client leaves.
    while (ending == Ending::kWait && recv(client, &c, 1, 0) == 1) {
    }
    close(client);
  }

  int fd_;
  uint16_t port_ = 0;
  std::thread thread_;
};

Result<HttpResponse> Get(const HttpUrl& url, std::string_view target,
                         HttpClientOptions options = {}) {
  return HttpClient(url, options).Call({.method = "GET", .target = target});
}

TEST(ParseHttpUrl, TakesHostPortAndPath) {
  struct Case {
    std::string_view text, host;
    uint16_t port;
    std::string_view path, again;
  };
  const Case cases[] = {
      {"http://localhost", "localhost", 80, "", "http://localhost:80"},
      {"HTTP://a.example:8080/", "a.example", 8080, "", "http://a.example:8080"},
      {"http://127.0.0.1:1/v1//", "127.0.0.1", 1, "/v1", "http://127.0.0.1:1/v1"},
      {"http://[::1]:65535/a/b", "::1", 65535, "/a/b", "http://[::1]:65535/a/b"},
      {"http://[fe80::2]", "fe80::2", 80, "", "http://[fe80::2]:80"},
  };
  for (const Case& one : cases) {
    const Result<HttpUrl> url = ParseHttpUrl(one.text);
    ASSERT_TRUE(url.ok()) << one.text << url.status().ToString();
    EXPECT_EQ(url->host, one.host);
    EXPECT_EQ(url->port, one.port);
    EXPECT_EQ(url->path, one.path);
    EXPECT_EQ(url->Text(), one.again);
  }
}

TEST(ParseHttpUrl, RefusesTheRestByName) {
  for (const std::string_view text :
       {"", "http", "http://", "localhost:8080", "ftp://x", "http://:80", "http://x:", "http://x:0",
        "http://x:65536", "http://x:8o", "http://[::1", "http://[x]", "http://[::1]8080",
        "http://me@x", "http://x?y", "http://x#y", "http://x/a b", "http://x/\n"}) {
    const Result<HttpUrl> url = ParseHttpUrl(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_EQ(url.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(url.status().message().find("found"), std::string::npos);
  }
  const Result<HttpUrl> secure = ParseHttpUrl("https://x");
  EXPECT_EQ(secure.status().code(), StatusCode::kUnimplemented);
}

TEST(HttpClient, GetsAndPosts) {
  const TestServer server;
  HttpUrl url = LocalUrl(server.port());
  const Result<HttpResponse> got = Get(url, "/echo");
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(got->status, 200);
  EXPECT_EQ(got->content_type, "text/plain");
  EXPECT_EQ(got->body, "GET|/echo||");
  EXPECT_FALSE(got->was_stream);
  url.path = "/echo";
  const std::string body(300'000, 'x');
  const Result<HttpResponse> posted =
      HttpClient(url).Call({.method = "POST", .target = "/more", .body = body});
  ASSERT_TRUE(posted.ok()) << posted.status().ToString();
  EXPECT_EQ(posted->body, "POST|/echo/more||" + body);
}

TEST(HttpClient, GivesAnswersThatAreRefusals) {
  const TestServer server({.body_bytes_max = 100, .api_keys = {"key"}});
  const HttpUrl url = LocalUrl(server.port());
  const Result<HttpResponse> keyless = Get(url, "/echo");
  ASSERT_TRUE(keyless.ok());
  EXPECT_EQ(keyless->status, 401);
  HttpCall call{.method = "POST",
                .target = "/echo",
                .headers = {{"Authorization", "Bearer key"}},
                .body = "fine"};
  EXPECT_EQ(HttpClient(url).Call(call)->status, 200);
  // The server closes while this still sends.
  const std::string large(4 << 20, 'x');
  call.body = large;
  const Result<HttpResponse> refused = HttpClient(url).Call(call);
  ASSERT_TRUE(refused.ok()) << refused.status().ToString();
  EXPECT_EQ(refused->status, 413);
  call.headers = {{"Authorization", "Bearer a\nb"}};
  EXPECT_EQ(HttpClient(url).Call(call).status().code(), StatusCode::kInvalidArgument);
}

TEST(HttpClient, SpeaksIpv6) {
  HttpServerOptions options{.host = "::1"};
  Result<std::unique_ptr<HttpServer>> server =
      HttpServer::Start(options, [](const ExchangePtr& exchange, const HttpRequest& request) {
        exchange->Respond(200, "text/plain", *request.FindHeader("Host"));
      });
  if (!server.ok()) GTEST_SKIP() << "this machine has no IPv6: " << server.status().ToString();
  const uint16_t port = (*server)->port();
  const Result<HttpUrl> url = ParseHttpUrl("http://[::1]:" + std::to_string(port));
  ASSERT_TRUE(url.ok());
  const Result<HttpResponse> got = Get(*url, "/");
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(got->body, "[::1]:" + std::to_string(port));
}

TEST(HttpClient, HandsOutEventsWhileTheyCome) {
  TestServer server;
  ExchangePtr exchange;
  std::vector<std::string> events;
  std::thread sender([&] {
    exchange = server.Take();
    exchange->StartEvents();
    exchange->SendEvent("data: one\n\n");
  });
  const Result<HttpResponse> response =
      HttpClient(LocalUrl(server.port()))
          .Call({.method = "POST", .target = "/stream", .on_event = [&](std::string_view data) {
                   events.emplace_back(data);
                   if (sender.joinable()) sender.join();
                   // Only what is handed out at once lets the next one be sent.
                   if (events.size() == 1) exchange->SendEvent(": comment\n\ndata: two\n\n");
                   if (events.size() == 2) exchange->EndEvents();
                   return true;
                 }});
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_TRUE(response->was_stream);
  EXPECT_EQ(response->body, "");
  EXPECT_EQ(events, (std::vector<std::string>{"one", "two"}));
}

TEST(HttpClient, LeavesAStreamThatIsNoLongerWanted) {
  TestServer server;
  ExchangePtr exchange;
  std::thread sender([&] {
    exchange = server.Take();
    exchange->StartEvents();
    exchange->SendEvent("data: one\n\ndata: two\n\n");
  });
  int count = 0;
  const Result<HttpResponse> response =
      HttpClient(LocalUrl(server.port()))
          .Call({.method = "POST", .target = "/stream", .on_event = [&](std::string_view) {
                   ++count;
                   return false;
                 }});
  sender.join();
  EXPECT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(count, 1);
  EXPECT_TRUE(Eventually([&] { return exchange->gone(); }));
}

TEST(HttpClient, StopsWhileNothingComes) {
  TestServer server;
  const auto start = steady_clock::now();
  const Result<HttpResponse> response =
      HttpClient(LocalUrl(server.port()))
          .Call({.method = "GET", .target = "/silent", .keep_going = [&] {
                   return steady_clock::now() - start < milliseconds(kShortMs);
                 }});
  EXPECT_EQ(response.status().code(), StatusCode::kCancelled) << response.status().ToString();
  EXPECT_LT(steady_clock::now() - start, kLate);
  const ExchangePtr exchange = server.Take();
  ASSERT_NE(exchange, nullptr);
  EXPECT_TRUE(Eventually([&] { return exchange->gone(); }));
}

TEST(HttpClient, DoesNotWaitForEver) {
  for (const std::string_view bytes :
       {"", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"}) {
    const ScriptedServer server(std::string(bytes), ScriptedServer::Ending::kWait);
    const auto start = steady_clock::now();
    const Result<HttpResponse> response = Get(server.url(), "/", {.silence_timeout_ms = kShortMs});
    EXPECT_EQ(response.status().code(), StatusCode::kUnavailable) << bytes;
    EXPECT_TRUE(response.status().message().ends_with("within 0.2 s"));
    EXPECT_TRUE(response.status().message().starts_with(server.url().Text() + ": "));
    EXPECT_GE(steady_clock::now() - start, milliseconds(kShortMs));
    EXPECT_LT(steady_clock::now() - start, kLate);
  }
}

TEST(HttpClient, SaysThatNobodyListens) {
  uint16_t port = 0;
  {
    const TestServer server;
    port = server.port();
  }
  const Result<HttpResponse> response = Get(LocalUrl(port), "/");
  EXPECT_EQ(response.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(response.status().message(),
            LocalUrl(port).Text() + ": no connection: Connection refused");
}

TEST(HttpClient, TakesEveryWayToEndABody) {
  for (const std::string_view bytes :
       {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3;x=y\r\ncde\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\n\r\nabcde"}) {
    const ScriptedServer server{std::string(bytes)};
    const Result<HttpResponse> response = Get(server.url(), "/");
    ASSERT_TRUE(response.ok()) << bytes << response.status().ToString();
    EXPECT_EQ(response->body, "abcde");
  }
  const ScriptedServer server("HTTP/1.1 204 No Content\r\n\r\n");
  EXPECT_EQ(Get(server.url(), "/")->status, 204);
}

TEST(HttpClient, SeesAnswersThatBreakOff) {
  for (const std::string_view bytes :
       {"", "HTTP/1.1 200 OK\r\nContent-", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"}) {
    const ScriptedServer server{std::string(bytes)};
    const Result<HttpResponse> response = Get(server.url(), "/");
    EXPECT_EQ(response.status().code(), StatusCode::kUnavailable)
        << bytes << response.status().ToString();
  }
}

TEST(HttpClient, SeesWhatIsNoHttp) {
  const std::string long_head = "HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n";
  for (const std::string_view bytes :
       {std::string_view("SSH-2.0-OpenSSH_9.2\r\n\r\n"), std::string_view(long_head),
        std::string_view("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    const ScriptedServer server(std::string(bytes), ScriptedServer::Ending::kWait);
    const Result<HttpResponse> response = Get(server.url(), "/");
    EXPECT_EQ(response.status().code(), StatusCode::kCorruption)
        << bytes.substr(0, 80) << response.status().ToString();
  }
}

TEST(HttpClient, HoldsNoMoreThanItMay) {
  const std::string body(1000, 'x');
  {
    const ScriptedServer server("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + body);
    EXPECT_EQ(Get(server.url(), "/", {.answer_bytes_max = 999}).status().code(),
              StatusCode::kResourceExhausted);
  }
  const ScriptedServer server(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + body + "\n\n");
  const HttpClient client(server.url(), {.event_bytes_max = 999});
  const Result<HttpResponse> response = client.Call(
      {.method = "GET", .target = "/", .on_event = [](std::string_view) { return true; }});
  EXPECT_EQ(response.status().code(), StatusCode::kResourceExhausted);
}

TEST(ServerSentEvents, FindsTheSameEventsHoweverBytesAreSplit) {
  const std::string_view stream =
      ": comment\n\ndata: a\n\nevent: x\r\ndata:b\r\ndata:  c\r\n\r\nid\ndata\n\n\n\ndata: cut";
  const std::vector<std::string> expected = {"a", "b\n c", ""};
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    ServerSentEvents events(100);
    std::vector<std::string> found;
    const auto take = [&found](std::string_view data) {
      found.emplace_back(data);
      return true;
    };
    for (size_t at = 0; at < stream.size(); at += piece) {
      const Result<bool> goes_on = events.Feed(stream.substr(at, piece), take);
      ASSERT_TRUE(goes_on.ok() && *goes_on);
    }
    EXPECT_EQ(found, expected) << piece;
  }
}

}  // namespace
}  // namespace k3::server
