#include "server/http_request_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "server/http_access.h"

namespace k3::server {
namespace {

using Progress = HttpRequestParser::Progress;
constexpr HttpParserLimits kLimits = {.head_bytes_max = 4096, .body_bytes_max = 1 << 20};

/// Feeds `bytes` cut at random and says what came out, as text.
std::string Outcome(std::string_view bytes, std::mt19937* random) {
  HttpRequestParser parser(kLimits);
  std::string pending;
  size_t fed = 0;
  for (;;) {
    size_t consumed = 0;
    const Progress progress = parser.Feed(pending, &consumed);
    pending.erase(0, consumed);
    if (progress == Progress::kFailed) return "failed " + std::to_string(parser.failure().status);
    if (progress == Progress::kDone) break;
    if (progress == Progress::kHead) continue;
    if (fed == bytes.size()) return "unfinished";
    const size_t piece =
        random == nullptr ? bytes.size() : 1 + (*random)() % std::min<size_t>(bytes.size(), 9);
    pending += bytes.substr(fed, piece);
    fed = std::min(fed + piece, bytes.size());
  }
  const HttpRequest& request = parser.request();
  std::string text = request.method + " " + request.path + " " + request.query;
  for (const auto& [name, value] : request.headers) text += "|" + name + "=" + value;
  return text + "|" + request.body + "|" + (parser.keep_alive() ? "keep" : "close") + "|" +
         pending.append(bytes.substr(fed));
}

TEST(HttpRequestParser, AnyCutGivesTheSameRequest) {
  const std::pair<std::string, std::string> cases[] = {
      {"GET /a?b HTTP/1.1\r\nHost: h\r\n\r\nGET", "GET /a b|Host=h||keep|GET"},
      {"POST / HTTP/1.1\r\nHost:h\r\nContent-Length: 3\r\n\r\nabcd",
       "POST / |Host=h|Content-Length=3|abc|keep|d"},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n"
       "2;x=\"y\"\r\nab\r\n000a\r\n0123456789\r\n0\r\nContent-Type: x\r\n\r\nrest",
       "POST / |Host=h|Transfer-Encoding=Chunked|ab0123456789|keep|rest"},
      {"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
       "GET / |Host=h|Connection=close||close|"},
      {"GET / HTTP/1.1\nHost: h\n\n\r\n\r\n", "failed 505"},
      {"GET / HTTP/1.1\r\nHost : h\r\n\r\n", "failed 400"},
      {"GET / HTTP/1.1\r\nHost: h\r\nA: b", "unfinished"},
  };
  std::mt19937 random(1);  // NOLINT(bugprone-random-generator-seed): a fixed case
  for (const auto& [bytes, expected] : cases) {
    EXPECT_EQ(Outcome(bytes, nullptr), expected);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(Outcome(bytes, &random), expected);
  }
}

TEST(HttpRequestParser, SplitsTargets) {
  const auto split = [](std::string_view target, std::string_view method = "GET") {
    HttpRequest request;
    if (!SplitTarget(method, target, &request)) return std::string("malformed");
    return request.path + " " + request.query;
  };
  EXPECT_EQ(split("/"), "/ ");
  EXPECT_EQ(split("/a%2Fb%25?c%20d?e"), "/a/b% c%20d?e");
  EXPECT_EQ(split("/%c3%a9"), "/\xc3\xa9 ");
  EXPECT_EQ(split("http://host:80/a?b"), "/a b");
  EXPECT_EQ(split("HTTPS://host"), "/ ");
  EXPECT_EQ(split("http://host?b"), "/ b");
  EXPECT_EQ(split("*", "OPTIONS"), "* ");
  for (const std::string_view bad :
       {"", "a", "*", "/%", "/%4", "/%4g", "/%00", "/%7f", "/%c3", "?x", "ftp://h/"}) {
    EXPECT_EQ(split(bad), "malformed") << bad;
  }
}

TEST(HttpAccess, ComparesKeysWhole) {
  const std::vector<std::string> keys = {"abc", "abcabc", "x"};
  const auto has = [&](std::string header) { return HasApiKey(keys, &header); };
  EXPECT_FALSE(HasApiKey(keys, nullptr));
  EXPECT_TRUE(has("Bearer abc"));
  EXPECT_TRUE(has("BEARER abcabc"));
  EXPECT_TRUE(has("Bearer x"));
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer ab", "Bearer abcd", "Bearer abcabcabc",
                            "Bearer xx", "Bearer  abc", "abc", "Basic abc"}) {
    EXPECT_FALSE(has(wrong)) << wrong;
  }
  EXPECT_FALSE(HasApiKey({}, &keys[0]));
}

TEST(HttpResponse, WritesDatesOfHttp) {
  EXPECT_EQ(FormatHttpDate(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");  // RFC 9110, 5.6.7
  EXPECT_EQ(FormatHttpDate(951782400), "Tue, 29 Feb 2000 00:00:00 GMT");
}

}  // namespace
}  // namespace k3::server
