#include "text/tiktoken_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"

namespace k3 {
namespace {

// One line, before its bytes are decoded.
struct Line {
  std::string_view base64;
  int64_t number = 0;  // counted from 1; 0: no line had this rank
};

constexpr uint8_t kNotBase64 = 255;

constexpr std::array<uint8_t, 256> MakeBase64Values() {
  std::array<uint8_t, 256> values{};
  values.fill(kNotBase64);
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<uint8_t>(kAlphabet[i])] = static_cast<uint8_t>(i);
  }
  return values;
}
constexpr std::array<uint8_t, 256> kBase64Values = MakeBase64Values();

// Strict: padded to four characters, nothing but the alphabet, unused bits zero. False otherwise.
bool DecodeBase64(std::string_view text, std::string* bytes) {
  bytes->clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  size_t count = text.size();
  while (count > text.size() - 2 && text[count - 1] == '=') --count;
  uint32_t bits = 0;
  int bits_count = 0;
  for (const char c : text.substr(0, count)) {
    const uint8_t value = kBase64Values[static_cast<uint8_t>(c)];
    if (value == kNotBase64) return false;
    bits = bits << 6 | value;
    bits_count += 6;
    if (bits_count < 8) continue;
    bits_count -= 8;
    bytes->push_back(static_cast<char>(bits >> bits_count));
    bits &= (1u << bits_count) - 1;
  }
  return bits == 0;
}

std::optional<int64_t> ParseRank(std::string_view text) {
  int64_t rank = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [stop, error] = std::from_chars(begin, end, rank);
  if (error != std::errc() || stop != end || rank < 0) return std::nullopt;
  return rank;
}

// Takes the next line off `rest`, without its end ("\n" or "\r\n").
std::string_view TakeLine(std::string_view* rest) {
  const size_t end = std::min(rest->find('\n'), rest->size());
  std::string_view line = rest->substr(0, end);
  rest->remove_prefix(std::min(end + 1, rest->size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

int64_t CountTokenLines(std::string_view content) {
  int64_t count = 0;
  while (!content.empty()) count += !TakeLine(&content).empty();
  return count;
}

// The lines in the order of their ranks.
Result<std::vector<Line>> ReadLines(std::string_view content, std::string_view where) {
  const int64_t count = CountTokenLines(content);
  if (count > limits::kVocabularyMax) {
    return Corruption(fmt::format("{}: {} tokens are more than the limit of {}", where, count,
                                  limits::kVocabularyMax));
  }
  std::vector<Line> lines(static_cast<size_t>(count));
  for (int64_t number = 1; !content.empty(); ++number) {
    const std::string_view line = TakeLine(&content);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) {
      return Corruption(
          fmt::format("{}: line {}: expected a base64 token, a space and its rank, found no space",
                      where, number));
    }
    const std::optional<int64_t> rank = ParseRank(line.substr(space + 1));
    if (!rank) {
      return Corruption(
          fmt::format("{}: line {}: the rank is not a decimal number from 0", where, number));
    }
    if (*rank >= count) {
      return Corruption(
          fmt::format("{}: line {}: rank {} of a file of {} tokens: ranks must be 0 to {} without "
                      "gaps",
                      where, number, *rank, count, count - 1));
    }
    Line& slot = lines[static_cast<size_t>(*rank)];
    if (slot.number != 0) {
      return Corruption(fmt::format("{}: line {}: rank {} was already given on line {}", where,
                                    number, *rank, slot.number));
    }
    slot = {line.substr(0, space), number};
  }
  return lines;
}

}  // namespace

Result<TokenTable> ParseTiktokenFile(std::string_view content, std::string_view where) {
  if (static_cast<int64_t>(content.size()) > limits::kTokenizerFileBytesMax) {
    return Corruption(fmt::format("{}: {} bytes are more than the limit of {}", where,
                                  content.size(), limits::kTokenizerFileBytesMax));
  }
  K3_TRY(const std::vector<Line> lines, ReadLines(content, where));
  TokenTable table;
  table.Reserve(static_cast<int64_t>(lines.size()), static_cast<int64_t>(content.size()) / 2);
  std::string bytes;
  for (const Line& line : lines) {
    if (!DecodeBase64(line.base64, &bytes)) {
      return Corruption(
          fmt::format("{}: line {}: the token is not padded base64", where, line.number));
    }
    if (static_cast<int64_t>(bytes.size()) > limits::kTokenBytesMax) {
      return Corruption(fmt::format("{}: line {}: a token of {} bytes is over the limit of {}",
                                    where, line.number, bytes.size(), limits::kTokenBytesMax));
    }
    if (table.Append(bytes) == TokenTable::kNotFound) {
      const int64_t first = lines[static_cast<size_t>(table.Find(bytes))].number;
      return Corruption(
          fmt::format("{}: line {}: the same token is on line {}", where, line.number, first));
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (table.FindByte(static_cast<uint8_t>(byte)) == TokenTable::kNotFound) {
      return Corruption(fmt::format(
          "{}: no token is the single byte 0x{:02X}; a byte-level vocabulary has all 256", where,
          byte));
    }
  }
  return table;
}

}  // namespace k3
