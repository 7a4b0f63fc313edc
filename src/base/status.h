#pragma once
// Status and Result<T>: how every fallible function in this project reports failure.
//
//   Result<Config> LoadConfig(const std::string& path);
//   K3_TRY(Config config, LoadConfig(path));         // returns the failure, else binds the value
//   K3_RETURN_IF_ERROR(Check(config));
//   return status.WithContext("reading shard 3");    // outermost context is printed first
//
// Bad files, bad requests and full disks are a Status; a broken invariant of ours is K3_CHECK.
// A message says what, where, expected, found and what to do. Both types are values, safe to move
// between threads, and own their text.

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace k3 {

enum class StatusCode {
  kOk,
  kInvalidArgument,
  kNotFound,
  kCorruption,
  kIoError,
  kUnavailable,
  kResourceExhausted,
  kUnimplemented,
  kCancelled,
  kInternal,
};

/// The code's name as printed, such as "Corruption".
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same failure seen from further out: "context: message". An ok status stays ok.
  Status WithContext(std::string_view context) const;

  /// "Corruption: model-00001.safetensors: header length ..." or "Ok".
  std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
inline Status InvalidArgument(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status Corruption(std::string m) { return {StatusCode::kCorruption, std::move(m)}; }
inline Status IoError(std::string m) { return {StatusCode::kIoError, std::move(m)}; }
inline Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
inline Status ResourceExhausted(std::string m) {
  return {StatusCode::kResourceExhausted, std::move(m)};
}
inline Status Unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
inline Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

/// A value or the reason why there is none. Reading the value of a failure aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Result(Status status) : value_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    K3_CHECK(!std::get<Status>(value_).ok(), "a Result needs a value or a failure");
  }

  bool ok() const { return std::holds_alternative<T>(value_); }
  Status status() const { return ok() ? OkStatus() : std::get<Status>(value_); }

  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T value() && { return std::move(Checked()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  T& Checked() {
    K3_CHECK(ok(), std::get<Status>(value_).message().c_str());
    return std::get<T>(value_);
  }

  std::variant<T, Status> value_;
};

inline Status ToStatus(Status status) { return status; }
template <typename T>
Status ToStatus(const Result<T>& result) {
  return result.status();
}

}  // namespace k3

#define K3_CONCAT_INNER(a, b) a##b
#define K3_CONCAT(a, b) K3_CONCAT_INNER(a, b)

#define K3_RETURN_IF_ERROR(expression)                      \
  do {                                                      \
    if (auto k3_status_ = (expression); !k3_status_.ok()) { \
      return ::k3::ToStatus(std::move(k3_status_));         \
    }                                                       \
  } while (false)

/// K3_TRY(declaration, expression): binds the value of a Result or returns its failure.
#define K3_TRY(declaration, expression) \
  K3_TRY_INNER(K3_CONCAT(k3_result_, __LINE__), declaration, expression)
#define K3_TRY_INNER(result, declaration, expression) \
  auto result = (expression);                         \
  if (!result.ok()) return result.status();           \
  declaration = std::move(result).value()
