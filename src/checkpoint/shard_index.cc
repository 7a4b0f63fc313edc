#include "checkpoint/shard_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/limits.h"
#include "config/json.h"

namespace k3 {
namespace {

// Keys outside the map are few; more than this in one object is no index.
constexpr size_t kOtherKeysMax = 1000;
constexpr size_t kFileNameBytesMax = 255;

/// A name that stays inside the checkpoint's directory.
bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name.size() <= kFileNameBytesMax && name[0] != '.' &&
         name.find("..") == std::string_view::npos &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

class IndexReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit IndexReader(const ShardIndexVisitor& visit) : visit_(visit) {}

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool /*value*/) override { return Scalar(nullptr); }
  bool number_integer(int64_t /*value*/) override { return Scalar(nullptr); }
  bool number_float(double /*value*/, const std::string& /*text*/) override {
    return Scalar(nullptr);
  }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return false; }
  bool number_unsigned(uint64_t value) override {
    const int64_t number = static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX));
    return Scalar(&number);
  }

  bool string(std::string& shard) override {
    if (!in_map_) return Scalar(nullptr);
    if (!IsPlainFileName(shard)) {
      return Fail("a plain file name in the same directory", QuoteForMessage(shard));
    }
    status_ = visit_(key_, shard);
    return status_.ok();
  }

  bool key(std::string& name) override {
    if (in_map_) {
      if (std::ssize(name) > limits::kTensorNameBytesMax) {
        key_ = std::move(name);
        return Fail(fmt::format("a name of at most {} bytes", limits::kTensorNameBytesMax),
                    fmt::format("{}", key_.size()));
      }
      if (++entries_count_ > limits::kTensorsCountMax) {
        return Fail(fmt::format("at most {} tensors", limits::kTensorsCountMax), "more");
      }
      key_ = std::move(name);
      return true;
    }
    key_ = std::move(name);
    std::set<std::string>& keys = keys_.back();
    if (keys.size() >= kOtherKeysMax) {
      return Fail(fmt::format("at most {} keys beside the map", kOtherKeysMax), "more");
    }
    if (!keys.insert(key_).second) return Fail("every key once", "it twice");
    return true;
  }

  bool start_object(size_t /*size*/) override {
    if (in_map_) return Fail("the name of a shard", "an object");
    if (at_top_member() && key_ == "weight_map") {
      in_map_ = map_seen_ = true;
      return true;
    }
    in_metadata_ = in_metadata_ || (at_top_member() && key_ == "metadata");
    return Nest();
  }
  bool end_object() override {
    if (in_map_) {
      in_map_ = false;
      return true;
    }
    return EndNested();
  }
  bool start_array(size_t /*size*/) override {
    if (in_map_ || keys_.empty()) return Fail("an object", "an array");
    return Nest();
  }
  bool end_array() override { return EndNested(); }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    status_ =
        Corruption(fmt::format("expected valid JSON, found a fault at byte {}: {}; download "
                               "the index again",
                               position, QuoteForMessage(error.what())));
    return false;
  }

  Status Finish() const {
    if (!map_seen_) return Corruption("expected a \"weight_map\" object, found none");
    if (first_layer_.has_value() != last_layer_.has_value() ||
        first_layer_.value_or(0) > last_layer_.value_or(0)) {
      return Corruption(
          fmt::format("metadata: expected {} <= {} together", kFirstLayerKey, kLastLayerKey));
    }
    return OkStatus();
  }
  ShardIndexMetadata metadata() const {
    ShardIndexMetadata metadata;
    metadata.total_size = total_size_;
    if (first_layer_.has_value()) metadata.layers = LayerRange{*first_layer_, *last_layer_};
    return metadata;
  }
  const Status& status() const { return status_; }

 private:
  /// In the outermost object, right behind a key.
  bool at_top_member() const { return keys_.size() == 1; }

  bool Fail(std::string_view expected, std::string_view found) {
    status_ = Corruption(
        fmt::format("entry {}: expected {}, found {}", QuoteForMessage(key_), expected, found));
    return false;
  }
  bool Nest() {
    if (std::ssize(keys_) >= limits::kJsonDepthMax) {
      return Fail(fmt::format("at most {} levels of nesting", limits::kJsonDepthMax), "more");
    }
    keys_.emplace_back();
    return true;
  }
  bool EndNested() {
    keys_.pop_back();
    if (at_top_member()) in_metadata_ = false;
    return true;
  }
  bool Scalar(const int64_t* number) {
    if (in_map_) return Fail("the name of a shard", "another value");
    if (keys_.empty()) return Fail("an object", "another value");
    if (number == nullptr || !in_metadata_ || keys_.size() != 2) return true;
    if (key_ == "total_size") total_size_ = *number;
    if (key_ == kFirstLayerKey) first_layer_ = *number;
    if (key_ == kLastLayerKey) last_layer_ = *number;
    return true;
  }

  const ShardIndexVisitor& visit_;
  std::vector<std::set<std::string>> keys_;  // of each open object outside the map
  std::string key_;
  bool in_map_ = false;
  bool map_seen_ = false;
  bool in_metadata_ = false;
  int64_t entries_count_ = 0;
  std::optional<int64_t> total_size_, first_layer_, last_layer_;
  Status status_;
};

}  // namespace

Result<ShardIndexMetadata> ReadShardIndex(std::string_view json, std::string_view where,
                                          const ShardIndexVisitor& visit) {
  IndexReader reader(visit);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    return reader.status().WithContext(where);
  }
  K3_RETURN_IF_ERROR(reader.Finish().WithContext(where));
  return reader.metadata();
}

}  // namespace k3
