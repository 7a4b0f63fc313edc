#pragma once
// What the grammar tests share: tokenizers, schemas, a validator of its own, and random walks.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "config/json.h"
#include "grammar/token_vocabulary.h"
#include "sample/token_constraint.h"
#include "text/base64_test_util.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace k3 {

inline JsonValue Json(std::string_view text) {
  Result<JsonValue> value = ParseJson(text, "test");
  EXPECT_TRUE(value.ok()) << value.status().ToString() << " in " << text;
  return value.ok() ? std::move(value).value() : JsonValue();
}

/// A token for each byte and each of `words`, which are no single bytes, then the four markers and
/// a control token beside them.
inline Tokenizer MakeTokenizer(const std::vector<std::string>& words) {
  std::string model;
  for (int byte = 0; byte < 256; ++byte) {
    model += fmt::format("{} {}\n", Base64(std::string(1, static_cast<char>(byte))), byte);
  }
  int32_t rank = 256;
  for (const std::string& word : words) model += fmt::format("{} {}\n", Base64(word), rank++);
  std::string config;
  for (const std::string_view name : {kXtmlOpen, kXtmlClose, kXtmlSep, kXtmlEndOfMessage}) {
    config +=
        fmt::format(R"({}"{}": {{"content": "{}"}})", config.empty() ? "" : ", ", rank++, name);
  }
  Result<Tokenizer> tokenizer =
      Tokenizer::Create({.model = model,
                         .config = fmt::format(R"({{"added_tokens_decoder": {{{}}}}})", config),
                         .vocab_size = rank + 1});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return std::move(tokenizer).value();
}

inline Tokenizer ReadNanoTokenizer() {
  const auto read = [](const char* name) {
    std::ifstream file(fmt::format("{}/models/nano/{}", K3_SOURCE_DIR, name), std::ios::binary);
    EXPECT_TRUE(file.good()) << name;
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string model = read("tiktoken.model");
  const std::string config = read("tokenizer_config.json");
  Result<Tokenizer> tokenizer =
      Tokenizer::Create({.model = model, .config = config, .vocab_size = 2560});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return std::move(tokenizer).value();
}

/// Schemas of every kind that is supported, each satisfiable.
inline const std::vector<std::string_view>& TestSchemas() {
  static const std::vector<std::string_view> schemas = {
      R"(true)",
      R"({"type": "object"})",
      R"({"type": "string"})",
      R"({"type": "integer"})",
      R"({"type": ["number", "null"]})",
      R"({"type": "string", "minLength": 2, "maxLength": 5})",
      R"({"enum": ["a", "ab", "\"q\"\n", 1, 12, 1.5, null, true, {"x": [1, 2]}, ""]})",
      R"({"enum": ["a", 1, 12, "b"], "type": ["integer", "null"]})",
      R"({"const": {"a": 1, "b": "two"}})",
      R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
      R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}],
          "items": {"type": "null"}, "minItems": 1})",
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
          "nämé \"q\"": {"type": "boolean"}}, "required": ["name", "age"],
          "additionalProperties": false})",
      // The names are those that PickClosing meets.
      R"({"type": "object", "properties": {"a": {"type": "string"}, "": {"type": "number"}},
          "required": ["", "}"], "additionalProperties": {"type": "boolean"}})",
      R"({"anyOf": [{"type": "object", "properties": {"k": {"const": "x"}, "v": {"type": "string"}},
                     "required": ["k", "v"], "additionalProperties": false},
                    {"type": "object", "properties": {"k": {"const": "xy"},
                     "v": {"type": "integer"}}, "required": ["k"], "additionalProperties": false},
                    {"type": "array", "items": {"$ref": "#"}}]})",
      R"({"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]})",
      R"({"$defs": {"tree": {"type": "object", "properties": {"left": {"anyOf":
          [{"$ref": "#/$defs/tree"}, {"type": "null"}]}, "n": {"type": "integer"}},
          "required": ["left", "n"], "additionalProperties": false}}, "$ref": "#/$defs/tree"})",
      R"({"allOf": [{"type": "array", "items": {"type": ["string", "boolean"]}, "maxItems": 2}],
          "title": "t", "description": "d", "default": []})",
      R"({"type": "object", "properties": {"list": {"type": "array", "items": {"anyOf": [
          {"type": "array", "items": {"type": "integer"}}, {"type": "array", "items":
          {"type": "number"}, "maxItems": 2}]}}}, "required": ["list"],
          "additionalProperties": false})",
  };
  return schemas;
}

/// Whether `value` satisfies `schema`, of those keywords alone that are supported. Slow and simple.
class Validator {
 public:
  explicit Validator(const JsonValue& root) : root_(root) {}

  bool Check(const JsonValue& schema, const JsonValue& value) const {
    if (schema.boolean() != nullptr) return *schema.boolean();
    if (const JsonValue* ref = schema.Find("$ref"); ref != nullptr) {
      const std::string& name = *ref->string();
      if (name == "#") return Check(root_, value);
      return Check(*root_.Find("$defs")->Find(name.substr(8)), value);
    }
    if (const JsonValue* any = schema.Find("anyOf"); any != nullptr && Count(*any, value) < 1) {
      return false;
    }
    if (const JsonValue* one = schema.Find("oneOf"); one != nullptr && Count(*one, value) != 1) {
      return false;
    }
    if (const JsonValue* all = schema.Find("allOf");
        all != nullptr && Count(*all, value) != all->items()->size()) {
      return false;
    }
    if (const JsonValue* fixed = schema.Find("enum"); fixed != nullptr) {
      const auto is_value = [&](const JsonValue& v) { return DumpJson(v) == DumpJson(value); };
      if (std::ranges::none_of(*fixed->items(), is_value)) return false;
    }
    if (const JsonValue* fixed = schema.Find("const"); fixed != nullptr) {
      if (DumpJson(*fixed) != DumpJson(value)) return false;
    }
    if (!HasType(schema, value)) return false;
    if (value.string() != nullptr) {
      return InRange(schema, "minLength", "maxLength",
                     std::ranges::count_if(*value.string(), [](char c) {
                       return (static_cast<uint8_t>(c) & 0xC0) != 0x80;
                     }));
    }
    if (value.items() != nullptr) return CheckArray(schema, value);
    if (value.members() != nullptr) return CheckObject(schema, value);
    return true;
  }

 private:
  size_t Count(const JsonValue& schemas, const JsonValue& value) const {
    return static_cast<size_t>(std::ranges::count_if(
        *schemas.items(), [&](const JsonValue& schema) { return Check(schema, value); }));
  }

  static bool HasType(const JsonValue& schema, const JsonValue& value) {
    const JsonValue* type = schema.Find("type");
    if (type == nullptr) return true;
    const JsonValue::Items one = {*type};
    return std::ranges::any_of(
        type->items() == nullptr ? one : *type->items(), [&](const JsonValue& name) {
          const std::string& t = *name.string();
          const bool is_integer = value.integer() != nullptr || value.big_integer() != nullptr;
          return (t == "null" && value.is_null()) ||
                 (t == "boolean" && value.boolean() != nullptr) || (t == "integer" && is_integer) ||
                 (t == "number" && value.number().has_value()) ||
                 (t == "string" && value.string() != nullptr) ||
                 (t == "array" && value.items() != nullptr) ||
                 (t == "object" && value.members() != nullptr);
        });
  }

  static bool InRange(const JsonValue& schema, std::string_view least, std::string_view most,
                      int64_t count) {
    const JsonValue* min = schema.Find(least);
    const JsonValue* max = schema.Find(most);
    return (min == nullptr || count >= *min->integer()) &&
           (max == nullptr || count <= *max->integer());
  }

  bool CheckArray(const JsonValue& schema, const JsonValue& value) const {
    const JsonValue::Items& items = *value.items();
    if (!InRange(schema, "minItems", "maxItems", std::ssize(items))) return false;
    const JsonValue* prefix = schema.Find("prefixItems");
    const JsonValue* rest = schema.Find("items");
    for (size_t i = 0; i < items.size(); ++i) {
      const bool has_own = prefix != nullptr && i < prefix->items()->size();
      const JsonValue* own = has_own ? &(*prefix->items())[i] : rest;
      if (own != nullptr && !Check(*own, items[i])) return false;
    }
    return true;
  }

  bool CheckObject(const JsonValue& schema, const JsonValue& value) const {
    const JsonValue* properties = schema.Find("properties");
    const JsonValue* rest = schema.Find("additionalProperties");
    for (const auto& [name, member] : *value.members()) {
      const JsonValue* own = properties == nullptr ? nullptr : properties->Find(name);
      if (own == nullptr) own = rest;
      if (own != nullptr && !Check(*own, member)) return false;
    }
    const JsonValue* required = schema.Find("required");
    if (required == nullptr) return true;
    return std::ranges::all_of(*required->items(), [&](const JsonValue& name) {
      return value.Find(*name.string()) != nullptr;
    });
  }

  const JsonValue& root_;
};

/// The byte that ends what was begun soonest, of those in `allowed`, a string of bytes.
inline uint8_t PickClosing(const std::string& allowed) {
  // A tilde stands in strings alone.
  const bool in_string = allowed.find('~') != std::string::npos;
  if (in_string && allowed.find('"') != std::string::npos) return '"';
  constexpr std::string_view kOrder = "}]\":0123456789nfalsetrueabcdefABCDEFuxyzkv ,";
  for (const char c : kOrder) {
    if (allowed.find(c) != std::string::npos) return static_cast<uint8_t>(c);
  }
  return static_cast<uint8_t>(allowed.front());
}

}  // namespace k3
