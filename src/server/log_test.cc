#include "server/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <thread>
#include <vector>

#include "config/json.h"

namespace k3::server {
namespace {

TEST(Log, WritesOneObjectWithItsFieldsInOrder) {
  // 1769860800123 ms is 2026-01-31 12:00:00.123 UTC, by `date -u -d @1769860800`.
  EXPECT_EQ(FormatLogLine(1769860800123, LogLevel::kInfo, "request_done",
                          {{"id", uint64_t{7}},
                           {"seconds", 0.25},
                           {"cached", true},
                           {"path", "/v1/models"},
                           {"peer", std::string("[::1]:9")}}),
            R"({"ts":"2026-01-31T12:00:00.123Z","level":"info","event":"request_done","id":7,)"
            R"("seconds":0.25,"cached":true,"path":"/v1/models","peer":"[::1]:9"})");
}

TEST(Log, TextOfClientsCannotBreakTheLine) {
  const std::string line = FormatLogLine(
      0, LogLevel::kWarn, "bad",
      {{"path", std::string("\"},\n{\"\0\x1b[2J\xff\xc3", 14)}, {"number", std::nan("")}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  const auto parsed = ParseJson(line, "line");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  const std::string expected("\"},\n{\"\0\x1b[2J\xef\xbf\xbd\xef\xbf\xbd", 18);
  EXPECT_EQ(*parsed->Find("path")->string(), expected);
  EXPECT_TRUE(parsed->Find("number")->is_null());
}

TEST(Log, CutsLongTexts) {
  const std::string line =
      FormatLogLine(0, LogLevel::kInfo, "e", {{"text", std::string(100'000, 'x')}});
  EXPECT_LT(line.size(), 2200u);
  EXPECT_TRUE(ParseJson(line, "line").ok());
}

TEST(Log, KnowsItsLevels) {
  EXPECT_EQ(*ParseLogLevel("warn"), LogLevel::kWarn);
  EXPECT_EQ(*ParseLogLevel("off"), LogLevel::kOff);
  EXPECT_FALSE(ParseLogLevel("Warn").ok());
  EXPECT_TRUE(Logger(LogLevel::kWarn).Enabled(LogLevel::kError));
  EXPECT_FALSE(Logger(LogLevel::kWarn).Enabled(LogLevel::kInfo));
  EXPECT_FALSE(Logger(LogLevel::kOff).Enabled(LogLevel::kError));
}

TEST(Log, LinesOfManyThreadsStayWhole) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  constexpr int kThreadsCount = 4;
  constexpr int kLines = 200;
  {
    Logger logger(LogLevel::kInfo, ends[1]);
    std::string text;
    std::thread reader([&] {
      char buffer[4096];
      for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, n);
    });
    std::vector<std::thread> writers;
    for (int t = 0; t < kThreadsCount; ++t) {
      writers.emplace_back([&] {
        for (int i = 0; i < kLines; ++i) {
          logger.Info("line", {{"text", std::string(500, 'a')}});
          logger.Debug("hidden");
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
    close(ends[1]);
    reader.join();
    int count = 0;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;) {
      EXPECT_TRUE(ParseJson(text.substr(begin, end - begin), "line").ok());
      begin = end + 1;
      ++count;
    }
    EXPECT_EQ(count, kThreadsCount * kLines);
  }
  close(ends[0]);
}

}  // namespace
}  // namespace k3::server
