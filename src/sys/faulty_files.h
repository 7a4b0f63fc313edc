#pragma once
// FaultyFiles: the machine's files with a full disk or a killed process at a chosen moment, for
// tests of what is written whole or not at all. One thread.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "sys/file.h"

namespace k3 {

/// The machine's files, until a number of changes have been made. From then on every change fails,
/// in the way that `fault` says.
class FaultyFiles : public FileSystem {
 public:
  enum class Fault {
    kDiskFull,    // nothing can be written, but files can be removed
    kShortWrite,  // the same, and the write that fails has left half of its bytes
    kKilled,      // nothing happens any more, as after the death of the process
  };
  FaultyFiles(Fault fault, int64_t allowed) : fault_(fault), allowed_(allowed) {}
  bool failed() const { return allowed_ < 0; }

  Result<std::unique_ptr<ReadableFile>> OpenReadable(const std::string& path) override {
    return real_->OpenReadable(path);
  }
  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    K3_RETURN_IF_ERROR(Spend(path));
    K3_TRY(std::unique_ptr<WritableFile> file, real_->Create(path));
    return std::unique_ptr<WritableFile>(std::make_unique<File>(this, path, std::move(file)));
  }
  Result<std::unique_ptr<WritableFile>> CreateNew(const std::string& path) override {
    K3_RETURN_IF_ERROR(Spend(path));
    K3_TRY(std::unique_ptr<WritableFile> file, real_->CreateNew(path));
    return std::unique_ptr<WritableFile>(std::make_unique<File>(this, path, std::move(file)));
  }
  Status Rename(const std::string& from, const std::string& to) override {
    K3_RETURN_IF_ERROR(Spend(to));
    return real_->Rename(from, to);
  }
  Status Remove(const std::string& path) override {
    if (fault_ == Fault::kKilled) K3_RETURN_IF_ERROR(Spend(path));
    return real_->Remove(path);
  }
  Status MakeDirectories(const std::string& path) override { return real_->MakeDirectories(path); }
  Status SyncDirectory(const std::string& path) override {
    // A full disk still makes renames durable.
    return fault_ == Fault::kKilled ? Spend(path) : real_->SyncDirectory(path);
  }
  bool Exists(const std::string& path) override { return real_->Exists(path); }
  Result<std::vector<std::string>> List(const std::string& path) override {
    return real_->List(path);
  }

 private:
  class File : public WritableFile {
   public:
    File(FaultyFiles* files, std::string path, std::unique_ptr<WritableFile> real)
        : files_(files), path_(std::move(path)), real_(std::move(real)) {}
    Status Append(std::span<const std::byte> bytes) override {
      const Status status = files_->Spend(path_);
      if (status.ok()) return real_->Append(bytes);
      if (files_->fault_ == Fault::kShortWrite) (void)real_->Append(bytes.first(bytes.size() / 2));
      return status;
    }
    Status Sync() override { return files_->Spend(path_); }
    Status Close() override {
      K3_RETURN_IF_ERROR(real_->Close());
      return files_->Spend(path_);
    }

   private:
    FaultyFiles* files_;
    std::string path_;
    std::unique_ptr<WritableFile> real_;
  };

  Status Spend(const std::string& path) {
    if (--allowed_ >= 0) return OkStatus();
    return ResourceExhausted(path + ": No space left on device");
  }

  std::unique_ptr<FileSystem> real_ = MakeRealFileSystem();
  Fault fault_;
  int64_t allowed_;
};

}  // namespace k3
