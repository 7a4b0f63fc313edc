#include "text/utf8_stream.h"

#include "text/utf8.h"

namespace k3 {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

std::string Utf8Stream::Feed(std::string_view bytes) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::move(pending_);
    joined += bytes;
    bytes = joined;
    pending_.clear();
  }
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = DecodeUtf8(bytes);
    if (step.kind == Utf8Step::Kind::kIncomplete) {
      pending_ = bytes;
      break;
    }
    out += step.kind == Utf8Step::Kind::kValid ? bytes.substr(0, step.length) : kReplacement;
    bytes.remove_prefix(step.length);
  }
  return out;
}

std::string Utf8Stream::Finish() {
  const bool cut_off = !pending_.empty();
  pending_.clear();
  return std::string(cut_off ? kReplacement : std::string_view());
}

}  // namespace k3
