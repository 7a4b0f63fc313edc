#include "server/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/limits.h"

namespace k3::server {
namespace {

constexpr std::string_view kLevelNames[] = {"debug", "info", "warn", "error", "off"};

/// A JSON string: cut to the limit, what is not UTF-8 replaced, control characters escaped.
std::string Quote(std::string_view text) {
  constexpr auto kMax = static_cast<size_t>(limits::kLogValueBytesMax);
  std::string kept(text.substr(0, kMax));
  if (text.size() > kMax) kept += "...";
  return nlohmann::json(kept).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ValueText(const LogField& field) {
  if (const auto* text = std::get_if<std::string_view>(&field.value)) return Quote(*text);
  if (const auto* integer = std::get_if<int64_t>(&field.value)) return std::to_string(*integer);
  if (const auto* flag = std::get_if<bool>(&field.value)) return *flag ? "true" : "false";
  const double number = std::get<double>(field.value);
  return std::isfinite(number) ? fmt::format("{}", number) : "null";
}

/// ISO 8601 in UTC, with milliseconds. Written out: gmtime's buffer would be shared by all threads.
std::string Timestamp(int64_t unix_ms) {
  using std::chrono::days;
  using std::chrono::floor;
  const std::chrono::sys_time<std::chrono::milliseconds> time{std::chrono::milliseconds(unix_ms)};
  const auto day = floor<days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count(),
                     clock.subseconds().count());
}

}  // namespace

Result<LogLevel> ParseLogLevel(std::string_view name) {
  for (size_t i = 0; i < std::size(kLevelNames); ++i) {
    if (kLevelNames[i] == name) return static_cast<LogLevel>(i);
  }
  return InvalidArgument(
      fmt::format("log level: expected debug, info, warn, error or off, found \"{}\"", name));
}

std::string FormatLogLine(int64_t unix_ms, LogLevel level, std::string_view event,
                          LogFields fields) {
  std::string line =
      fmt::format("{{\"ts\":\"{}\",\"level\":\"{}\",\"event\":{}", Timestamp(unix_ms),
                  kLevelNames[static_cast<int>(level)], Quote(event));
  for (const LogField& field : fields) {
    line += fmt::format(",{}:{}", Quote(field.key), ValueText(field));
  }
  line += '}';
  return line;
}

void Logger::Log(LogLevel level, std::string_view event, LogFields fields) {
  if (!Enabled(level)) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t unix_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::string line = FormatLogLine(unix_ms, level, event, fields) + "\n";
  const std::lock_guard lock(mutex_);
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t written = write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    rest.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace k3::server
