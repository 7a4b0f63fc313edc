// Fuzzes the two tokenizer files: the input is a tiktoken.model, a zero byte and a
// tokenizer_config.json. An input that starts with '+' is appended to the 256 single bytes, so that
// files which load are found at once. Whatever loads must encode and decode.

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "base/check.h"
#include "text/tokenizer.h"

namespace {

std::string Base64Byte(int byte) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return {kAlphabet[byte >> 2], kAlphabet[(byte & 3) << 4], '=', '='};
}

std::string ByteLines() {
  std::string out;
  for (int byte = 0; byte < 256; ++byte) out += fmt::format("{} {}\n", Base64Byte(byte), byte);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = std::min(input.find('\0'), input.size());
  std::string model(input.substr(0, split));
  const std::string_view config = input.substr(std::min(split + 1, input.size()));
  if (model.starts_with('+')) model = ByteLines() + model.substr(1);

  const k3::Result<k3::Tokenizer> tokenizer =
      k3::Tokenizer::Create({.model = model, .config = config, .vocab_size = 512});
  if (!tokenizer.ok()) {
    K3_CHECK(!tokenizer.status().message().empty(), "a refusal says why");
    return 0;
  }
  for (const std::string text : {"Hello, wörld's 世界 aaaaaaaa\n", "ababababcabcabc  \x01\x7F"}) {
    const auto ids = tokenizer->Encode(text);
    K3_CHECK(ids.ok(), "valid text encodes");
    K3_CHECK(*tokenizer->Decode(*ids) == text, "ids decode to the text");
  }
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    K3_CHECK(!tokenizer->TokenBytes(id).empty(), "every id has bytes");
  }
  return 0;
}
