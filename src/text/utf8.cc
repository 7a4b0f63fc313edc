#include "text/utf8.h"

#include <cstring>

namespace k3 {
namespace {

struct Lead {
  int32_t length;     // of the whole sequence, 0 when no sequence starts so
  uint8_t low, high;  // range of the second byte
  uint8_t payload;    // bits of the lead byte
};

// Table 3-7: only the second byte has a range that depends on the lead byte.
Lead LeadOf(uint8_t byte) {
  if (byte < 0xC2) return {0, 0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF, static_cast<uint8_t>(byte & 0x1F)};
  const auto payload3 = static_cast<uint8_t>(byte & 0x0F);
  if (byte == 0xE0) return {3, 0xA0, 0xBF, payload3};
  if (byte == 0xED) return {3, 0x80, 0x9F, payload3};
  if (byte < 0xF0) return {3, 0x80, 0xBF, payload3};
  const auto payload4 = static_cast<uint8_t>(byte & 0x07);
  if (byte == 0xF0) return {4, 0x90, 0xBF, payload4};
  if (byte < 0xF4) return {4, 0x80, 0xBF, payload4};
  if (byte == 0xF4) return {4, 0x80, 0x8F, payload4};
  return {0, 0, 0, 0};
}

// A sequence of three bytes whose lead byte leaves the second its full range: most of the
// characters beyond the alphabets of Europe and the Middle East.
bool IsPlainThreeBytes(const char* bytes, int64_t count) {
  if (count < 3) return false;
  const auto first = static_cast<uint8_t>(bytes[0]);
  if (first <= 0xE0 || first >= 0xF0 || first == 0xED) return false;
  return (bytes[1] & 0xC0) == 0x80 && (bytes[2] & 0xC0) == 0x80;
}

}  // namespace

Utf8Step DecodeUtf8(std::string_view bytes) {
  const auto first = static_cast<uint8_t>(bytes[0]);
  if (first < 0x80) return {Utf8Step::Kind::kValid, 1, first};
  const Lead lead = LeadOf(first);
  if (lead.length == 0) return {Utf8Step::Kind::kInvalid, 1, 0};
  char32_t code_point = lead.payload;
  for (int32_t i = 1; i < lead.length; ++i) {
    if (i == static_cast<int64_t>(bytes.size())) return {Utf8Step::Kind::kIncomplete, i, 0};
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Utf8Step::Kind::kInvalid, i, 0};
    code_point = code_point << 6 | (byte & 0x3F);
  }
  return {Utf8Step::Kind::kValid, lead.length, code_point};
}

int64_t FindInvalidUtf8(std::string_view bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  int64_t at = 0;
  while (at < size) {
    uint64_t word = 0;
    while (at + 8 <= size) {  // Eight ASCII bytes at a time.
      std::memcpy(&word, bytes.data() + at, 8);
      if ((word & 0x8080808080808080u) != 0) break;
      at += 8;
    }
    // The rest of the text as far as it is not ASCII, so that eight bytes are not tried in vain for
    // each of its characters.
    while (at < size && static_cast<uint8_t>(bytes[at]) < 0x80) ++at;
    while (at < size && static_cast<uint8_t>(bytes[at]) >= 0x80) {
      if (IsPlainThreeBytes(bytes.data() + at, size - at)) {
        at += 3;
        continue;
      }
      const Utf8Step step = DecodeUtf8(bytes.substr(static_cast<size_t>(at)));
      if (step.kind != Utf8Step::Kind::kValid) return at;
      at += step.length;
    }
  }
  return -1;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto tail = [&](int shift) {
    out->push_back(static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)));
  };
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xC0 | code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | code_point >> 12));
    tail(6);
    tail(0);
  } else {
    out->push_back(static_cast<char>(0xF0 | code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace k3
