#include "sys/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

namespace k3 {
namespace {

Status SystemError(std::string_view what, const std::string& path, int error) {
  std::string message = fmt::format("{}: {}: {}", path, what, std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return NotFound(std::move(message));
  if (error == ENOSPC || error == EDQUOT) {
    return ResourceExhausted(message + "; free some space or choose another disk");
  }
  return IoError(std::move(message));
}

/// Opens a regular file for reading: a FIFO or a device could block for ever.
Result<int> OpenRegular(const std::string& path, int64_t* size) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError("cannot open", path, errno);
  struct stat info{};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return SystemError("cannot stat", path, error);
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return InvalidArgument(path + ": expected a regular file, found something else");
  }
  *size = info.st_size;
  return fd;
}

class RealReadableFile : public ReadableFile {
 public:
  RealReadableFile(std::string path, int fd, int64_t size)
      : path_(std::move(path)), fd_(fd), size_(size) {}
  ~RealReadableFile() override { close(fd_); }

  Status ReadAt(int64_t offset, std::span<std::byte> out) override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n =
          pread(fd_, out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return SystemError("cannot read", path_, errno);
      if (n == 0) {
        return Corruption(fmt::format("{}: the file ends at byte {}, wanted {} bytes from {}",
                                      path_, size_, out.size(), offset));
      }
      done += static_cast<size_t>(n);
    }
    return OkStatus();
  }
  int64_t size() const override { return size_; }

 private:
  const std::string path_;
  const int fd_;
  const int64_t size_;
};

class RealWritableFile : public WritableFile {
 public:
  RealWritableFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~RealWritableFile() override {
    if (fd_ >= 0) close(fd_);
  }

  Status Append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return SystemError("cannot write", path_, errno);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return OkStatus();
  }
  Status Sync() override {
    if (fsync(fd_) != 0) return SystemError("cannot sync", path_, errno);
    return OkStatus();
  }
  Status Close() override {
    const int fd = fd_;
    fd_ = -1;
    if (close(fd) != 0) return SystemError("cannot close", path_, errno);
    return OkStatus();
  }

 private:
  const std::string path_;
  int fd_;
};

class RealFileSystem : public FileSystem {
 public:
  Result<std::unique_ptr<ReadableFile>> OpenReadable(const std::string& path) override {
    int64_t size = 0;
    K3_TRY(const int fd, OpenRegular(path, &size));
    return std::unique_ptr<ReadableFile>(std::make_unique<RealReadableFile>(path, fd, size));
  }
  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    return OpenWritable(path, O_TRUNC);
  }
  Result<std::unique_ptr<WritableFile>> CreateNew(const std::string& path) override {
    return OpenWritable(path, O_EXCL);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0)
      return SystemError("cannot rename to " + to, from, errno);
    return OkStatus();
  }
  Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) != 0) return SystemError("cannot remove", path, errno);
    return OkStatus();
  }
  Status MakeDirectories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return SystemError("cannot make the directory", path, error.value());
    return OkStatus();
  }
  Status SyncDirectory(const std::string& path) override {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return SystemError("cannot open the directory", path, errno);
    const int failed = fsync(fd) != 0 ? errno : 0;
    close(fd);
    // Some file systems refuse fsync on a directory; the rename itself has been done.
    if (failed != 0 && failed != EINVAL)
      return SystemError("cannot sync the directory", path, failed);
    return OkStatus();
  }
  bool Exists(const std::string& path) override { return access(path.c_str(), F_OK) == 0; }
  Result<std::vector<std::string>> List(const std::string& path) override {
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator it(path, error), end; !error && it != end;
         it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return SystemError("cannot list the directory", path, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  static Result<std::unique_ptr<WritableFile>> OpenWritable(const std::string& path, int flag) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flag, 0644);
    if (fd < 0 && errno == EEXIST) {
      return InvalidArgument(path +
                             ": expected no such file, found one; another process may be "
                             "writing here");
    }
    if (fd < 0) return SystemError("cannot create", path, errno);
    return std::unique_ptr<WritableFile>(std::make_unique<RealWritableFile>(path, fd));
  }
};

}  // namespace

std::unique_ptr<FileSystem> MakeRealFileSystem() { return std::make_unique<RealFileSystem>(); }

Result<std::string> ReadWholeFile(FileSystem& files, const std::string& path, int64_t bytes_max) {
  K3_TRY(std::unique_ptr<ReadableFile> file, files.OpenReadable(path));
  if (file->size() > bytes_max) {
    return InvalidArgument(
        fmt::format("{}: expected at most {} bytes, found {}", path, bytes_max, file->size()));
  }
  std::string content(static_cast<size_t>(file->size()), '\0');
  K3_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span<char>(content))));
  return content;
}

std::string PartialPath(const std::string& path) {
  return fmt::format("{}.{}.partial", path, getpid());
}

Status WriteFileAtomically(FileSystem& files, const std::string& path, std::string_view content) {
  const std::string partial = PartialPath(path);
  K3_TRY(std::unique_ptr<WritableFile> file, files.Create(partial));
  Status status = file->Append(AsBytes(content));
  if (status.ok()) status = file->Sync();
  const Status closed = file->Close();
  if (status.ok()) status = closed;
  if (status.ok()) status = files.Rename(partial, path);
  if (!status.ok()) {
    // The failure above is the one to report, whether or not the partial file can be removed.
    (void)files.Remove(partial);
    return status;
  }
  const size_t slash = path.rfind('/');
  return files.SyncDirectory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  MappedFile mapped;
  K3_TRY(const int fd, OpenRegular(path, &mapped.size_));
  if (mapped.size_ > 0) {
    void* p = mmap(nullptr, static_cast<size_t>(mapped.size_), PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
      const int error = errno;
      close(fd);
      mapped.size_ = 0;
      return SystemError("cannot map", path, error);
    }
    mapped.data_ = static_cast<const std::byte*>(p);
    // Of a file that one neither owns nor may write, mincore calls every page resident.
    struct stat info{};
    mapped.shows_residency_ =
        (fstat(fd, &info) == 0 && info.st_uid == geteuid()) || access(path.c_str(), W_OK) == 0;
  }
  close(fd);
  return mapped;
}

void MappedFile::MapResident(int64_t begin, int64_t end) const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  begin = begin / page * page;
  end = std::min(end, size_);
  if (begin >= end || !shows_residency_) return;
  auto* const data = const_cast<std::byte*>(data_);
  const int64_t pages = (end - begin + page - 1) / page;
  std::vector<unsigned char> resident(static_cast<size_t>(pages));
  if (mincore(data + begin, static_cast<size_t>(end - begin), resident.data()) != 0) return;
  for (int64_t i = 0; i < pages;) {
    const auto is_resident = [&](int64_t at) {
      return (resident[static_cast<size_t>(at)] & 1) != 0;
    };
    const int64_t first = i;
    for (++i; i < pages && is_resident(i) == is_resident(first);) ++i;
    if (!is_resident(first)) continue;
    if (madvise(data + begin + first * page, static_cast<size_t>((i - first) * page),
                MADV_POPULATE_READ) != 0) {
      return;
    }
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      shows_residency_(std::exchange(other.shows_residency_, false)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(shows_residency_, other.shows_residency_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

}  // namespace k3
