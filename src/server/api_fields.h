#pragma once
// What api_request.cc and api_chat.cc share: reading a request's fields with their paths, and the
// lists of names that are known. Pure functions, any thread. Failures as api_request.h says.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "config/json.h"

namespace k3::server {

/// A field of some request, at the top level.
bool IsRequestField(std::string_view name);

std::span<const std::string_view> ChatFields();
std::span<const std::string_view> TextFields();
std::span<const std::string_view> TokenizeFields();
std::span<const std::string_view> DetokenizeFields();

/// "path: expected ..., found ...".
Status Expected(std::string_view path, std::string_view expected, const JsonValue& found);

/// Unimplemented for a member that is not among `known`, whatever its value; "path: ...".
Status CheckNames(const JsonValue& object, std::string_view path,
                  std::span<const std::string_view> known);

/// The same at the top level, with reasons for what other servers take; those may be null or false.
Status CheckTopNames(const JsonValue& object, std::span<const std::string_view> known);

/// A field's name fit for a path: quoted when it is no plain name.
std::string NameForPath(std::string_view name);

/// An integer, also one that is written with a point or an exponent, as JSON knows no difference
/// between 10 and 10.0. From 2^53 on a fraction is none: two that were written are one double
/// there.
std::optional<int64_t> IntegerOf(const JsonValue& json);

/// Of a number: both ends are allowed, the lower one unless `above`.
struct Bounds {
  double min = 0;
  double max = 0;
  bool above = false;
};

Status ReadNumber(const JsonValue& json, std::string_view path, float& value, Bounds bounds);

/// Typed fields of one object. Readers leave the value alone when the field is absent or null.
class FieldsReader {
 public:
  /// `path` is what messages call the object; empty for the request itself.
  FieldsReader(const JsonValue& object, std::string path)
      : object_(object), path_(std::move(path)) {}

  /// Null when the field is absent or null.
  const JsonValue* Get(std::string_view name) const;
  std::string PathOf(std::string_view name) const;

  Status Read(std::string_view name, bool& value) const;
  Status Read(std::string_view name, std::string& value) const;
  Status Read(std::string_view name, std::optional<int64_t>& value, int64_t min, int64_t max) const;
  Status Read(std::string_view name, float& value, Bounds bounds) const;
  /// A field that may only be false.
  Status RefuseTrue(std::string_view name, std::string_view reason) const;

 private:
  const JsonValue& object_;
  std::string path_;
};

}  // namespace k3::server
