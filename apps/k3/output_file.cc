#include "output_file.h"

#include <filesystem>
#include <string_view>

#include "terminal/terminal.h"

namespace k3::cli {

bool IsNoRegularFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return !error && std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
}

Result<OutputFile> OutputFile::Create(FileSystem& files, const std::string& path) {
  OutputFile out;
  if (path == "-") return out;
  if (IsNoRegularFile(path)) {
    K3_TRY(out.device_, files.Create(path));
    return out;
  }
  K3_TRY(AtomicFile file, AtomicFile::Create(files, path));
  out.atomic_.emplace(std::move(file));
  return out;
}

Status OutputFile::Append(std::span<const std::byte> bytes) {
  if (atomic_.has_value()) return atomic_->Append(bytes);
  if (device_ != nullptr) return device_->Append(bytes);
  return WriteOutput({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Status OutputFile::Finish() {
  if (atomic_.has_value()) return atomic_->Finish();
  // A device has nothing to sync.
  if (device_ != nullptr) return device_->Close();
  return OkStatus();
}

}  // namespace k3::cli
