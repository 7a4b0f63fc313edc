#pragma once
// Logger: one JSON object a line, for whatever collects a service's logs.
//
//   logger.Info("request_done", {{"id", request.id}, {"tokens", count}, {"seconds", 0.25}});
//   -> {"ts":"2026-01-31T12:00:00.123Z","level":"info","event":"request_done","id":7,...}
//
// Any thread may log: a line is written whole, under a mutex. The logger does not own its file
// descriptor. Never log prompts, answers, request bodies or keys. A text beyond
// limits::kLogValueBytesMax is cut; bytes that are not UTF-8 become U+FFFD; a number that is not
// finite becomes null. A failing write is ignored: there is nowhere to tell.

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"

namespace k3::server {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

/// "debug", "info", "warn", "error" or "off"; anything else is InvalidArgument.
Result<LogLevel> ParseLogLevel(std::string_view name);

/// A name and a value; the text that it refers to must live until the call returns.
struct LogField {
  LogField(std::string_view k, bool v) : key(k), value(v) {}
  template <std::integral T>
  LogField(std::string_view k, T v) : key(k), value(static_cast<int64_t>(v)) {}
  LogField(std::string_view k, double v) : key(k), value(v) {}
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(std::string_view(v)) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(std::string_view(v)) {}

  std::string_view key;
  std::variant<bool, int64_t, double, std::string_view> value;
};

using LogFields = std::initializer_list<LogField>;

class Logger {
 public:
  /// `fd` is standard error unless a test reads it.
  explicit Logger(LogLevel level, int fd = 2) : level_(level), fd_(fd) {}
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  bool Enabled(LogLevel level) const { return level >= level_ && level_ != LogLevel::kOff; }
  void Log(LogLevel level, std::string_view event, LogFields fields = {});

  void Debug(std::string_view event, LogFields fields = {}) {
    Log(LogLevel::kDebug, event, fields);
  }
  void Info(std::string_view event, LogFields fields = {}) { Log(LogLevel::kInfo, event, fields); }
  void Warn(std::string_view event, LogFields fields = {}) { Log(LogLevel::kWarn, event, fields); }
  void Error(std::string_view event, LogFields fields = {}) {
    Log(LogLevel::kError, event, fields);
  }

 private:
  const LogLevel level_;
  const int fd_;
  std::mutex mutex_;
};

/// The line that Log writes, without its end: for tests. `unix_ms` is the time since 1970.
std::string FormatLogLine(int64_t unix_ms, LogLevel level, std::string_view event,
                          LogFields fields);

}  // namespace k3::server
