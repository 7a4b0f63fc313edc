#include "api_key_file.h"

#include <fmt/format.h>

#include <memory>

#include "base/limits.h"
#include "sys/file.h"

namespace k3::cli {

Result<std::vector<std::string>> ReadApiKeys(const std::string& path) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  K3_TRY(const std::string text, ReadWholeFile(*files, path, limits::kApiKeyFileBytesMax));
  std::vector<std::string> keys;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    std::string key = text.substr(begin, end - begin);
    begin = end + 1;
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    if (key.empty() || key.front() == '#') continue;
    keys.push_back(std::move(key));
  }
  // An empty file must not open the server to everybody.
  if (keys.empty()) {
    return InvalidArgument(fmt::format("{}: expected an API key a line, found none", path));
  }
  if (std::ssize(keys) > limits::kApiKeysCountMax) {
    return InvalidArgument(fmt::format("{}: expected at most {} keys, found {}", path,
                                       limits::kApiKeysCountMax, keys.size()));
  }
  return keys;
}

}  // namespace k3::cli
