#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "base/file_writer.h"
#include "base/large_pages.h"

namespace obelisk {
namespace {

Error file_error(const std::string& verb, const std::string& path, int number,
                 std::string hint = "") {
  const bool full = number == ENOSPC || number == EDQUOT;
  const bool memory = number == ENOMEM || number == EFBIG;
  if (full) hint = "free some space there or choose another folder";
  return {.code = memory ? Code::kMemory : Code::kUsage,
          .room = "base",
          .message = fmt::format("cannot {} {}: {}", verb, path,
                                 full ? "no space left on the disk" : std::strerror(number)),
          .hint = std::move(hint)};
}

// Closes on every way out.
struct Descriptor {
  int number = -1;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

// The folder entry itself must reach the disk, or a crash may lose the rename.
void sync_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  Descriptor file{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (file.number >= 0) ::fsync(file.number);
}

int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

/// Puts a file where another one is, without the wait for its bytes that a plain rename onto a file
/// brings on some file systems. False: there is none, or the system cannot.
bool take_place([[maybe_unused]] const std::string& of, [[maybe_unused]] const std::string& path) {
#ifdef RENAME_EXCHANGE
  if (::renameat2(AT_FDCWD, of.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) return false;
  struct stat status {};
  if (::lstat(of.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::unlink(of.c_str()) == 0)
    return true;
  // What stood there was no file, or cannot go: as it was.
  ::renameat2(AT_FDCWD, of.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE);
#endif
  return false;
}

std::atomic<int> copies{0};  // who asked for them and has not taken it back

Error changed(const std::string& path) {
  return Error{.code = Code::kUsage,
               .room = "base",
               .message = fmt::format("{} changed while it was read", path),
               .hint = "write a new file beside it and rename that"};
}

Status read_all(int file, const std::string& path, char* to, size_t bytes) {
  // A call that copies much keeps its core for as long as that takes, even where other threads wait
  // for it.
  constexpr size_t kPiece = 256 << 10;
  while (bytes > 0) {
    const ssize_t got = ::read(file, to, std::min(bytes, kPiece));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error("read", path, errno);
    if (got == 0) return changed(path);
    to += got, bytes -= static_cast<size_t>(got);
  }
  return ok_status();
}

/// The name under which a descriptor of ours can be linked to.
std::string descriptor_path(int file) { return fmt::format("/proc/self/fd/{}", file); }

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) return file_error("read", path, errno);
  struct stat status {};
  if (::fstat(file.number, &status) != 0) return file_error("read", path, errno);
  if (S_ISDIR(status.st_mode)) return file_error("read", path, EISDIR, "name a file in it");
  if (!S_ISREG(status.st_mode)) {
    return Error{.code = Code::kUsage,
                 .room = "base",
                 .message = fmt::format("cannot read {}: it is not a regular file", path),
                 .hint = "copy it to a file first"};
  }
  std::shared_ptr<MappedFile> out(new MappedFile);
  out->path_ = path;
  out->size_ = static_cast<size_t>(status.st_size);
  if (out->size_ > 0) {
    const bool copy = copies > 0;
    void* data = copy ? ::mmap(nullptr, out->size_, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                      : ::mmap(nullptr, out->size_, PROT_READ, MAP_PRIVATE, file.number, 0);
    if (data == MAP_FAILED) {
      const int number = errno;
      out->size_ = 0;
      return file_error("map", path, number);
    }
    out->data_ = static_cast<const std::byte*>(data);
    if (copy) {
      ask_for_large_pages(data, out->size_);
      TRY_STATUS(read_all(file.number, path, static_cast<char*>(data), out->size_));
      struct stat after {};
      if (::fstat(file.number, &after) != 0) return file_error("read", path, errno);
      if (after.st_size != status.st_size || after.st_mtim.tv_sec != status.st_mtim.tv_sec ||
          after.st_mtim.tv_nsec != status.st_mtim.tv_nsec)
        return changed(path);
      ::mprotect(data, out->size_, PROT_READ);
    }
  }
  return std::shared_ptr<const MappedFile>(std::move(out));
}

void MappedFile::open_copies(bool yes) { copies += yes ? 1 : -1; }

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::string> read_file(const std::string& path) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.number < 0) return file_error("read", path, errno);
  std::string out;
  struct stat status {};
  if (::fstat(file.number, &status) == 0 && S_ISREG(status.st_mode)) {
    out.reserve(static_cast<size_t>(status.st_size));
  }
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = ::read(file.number, buffer, sizeof buffer);
    if (got == 0) return out;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error("read", path, errno, errno == EISDIR ? "name a file in it" : "");
    out.append(buffer, static_cast<size_t>(got));
  }
}

Result<std::unique_ptr<FileWriter>> FileWriter::create(const std::string& path) {
  static std::atomic<unsigned> serial{0};  // only makes names differ between threads
  // A rename would put a file in the place of a device or a pipe.
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    if (S_ISDIR(status.st_mode)) return file_error("write", path, EISDIR, "name a file in it");
    return Error{.code = Code::kUsage,
                 .room = "base",
                 .message = fmt::format("cannot write {}: it is not a regular file", path),
                 .hint = "write to a file"};
  }
  std::unique_ptr<FileWriter> out(new FileWriter);
  out->path_ = path;
  out->temporary_ =
      fmt::format("{}.tmp.{}.{}", path, ::getpid(), serial.fetch_add(1, std::memory_order_relaxed));
  // A file without a name is gone with its process, even one that is killed. Where the file system
  // has none, the name that it would get at the end is taken now.
  const std::string folder =
      path.find('/') == std::string::npos ? "." : path.substr(0, path.rfind('/') + 1);
  out->file_ = ::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (out->file_ >= 0 && ::access(descriptor_path(out->file_).c_str(), F_OK) == 0) {
    out->nameless_ = true;
    return out;
  }
  if (out->file_ >= 0) ::close(out->file_);
  out->file_ = ::open(out->temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (out->file_ < 0) return file_error("write", path, errno);
  return out;
}

FileWriter::~FileWriter() {
  if (file_ < 0) return;
  ::close(file_);
  if (!nameless_) ::unlink(temporary_.c_str());
}

Status FileWriter::write(std::string_view bytes) {
  if (const int number = write_all(file_, bytes)) return file_error("write", path_, number);
  size_ += bytes.size();
  return ok_status();
}

Status FileWriter::pad_to(size_t alignment) {
  static constexpr char kZeros[4096] = {};
  return write({kZeros, (alignment - size_ % alignment) % alignment});
}

Status FileWriter::commit(OnDisk when) {
  int number = when == kNow && ::fsync(file_) != 0 ? errno : 0;
  if (number == 0 && nameless_ &&
      ::linkat(AT_FDCWD, descriptor_path(file_).c_str(), AT_FDCWD, temporary_.c_str(),
               AT_SYMLINK_FOLLOW) != 0) {
    number = errno;
  }
  if (::close(file_) != 0 && number == 0) number = errno;
  file_ = -1;
  if (number == 0 && when == kSoon && take_place(temporary_, path_)) return ok_status();
  if (number == 0 && std::rename(temporary_.c_str(), path_.c_str()) != 0) number = errno;
  if (number != 0) {
    ::unlink(temporary_.c_str());
    return file_error("write", path_, number);
  }
  if (when == kNow) sync_folder(path_);
  return ok_status();
}

Status write_file(const std::string& path, std::string_view bytes) {
  TRY(const auto file, FileWriter::create(path));
  TRY_STATUS(file->write(bytes));
  return file->commit();
}

}  // namespace obelisk
