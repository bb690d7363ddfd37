#include "base/temporary_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <utility>

namespace obelisk {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "obelisk.", kBlanks = "XXXXXX";
constexpr int kAttempts = 8;

int open_folder(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/// Still there, ours, and seen by nobody else.
bool is_ours(int folder) {
  struct stat info {};
  return ::fstat(folder, &info) == 0 && info.st_nlink > 0 && info.st_uid == ::geteuid();
}

/// Removes the folders in `base` whose owners were killed: nobody holds their locks.
void sweep(const std::string& base) {
  std::error_code failed;
  fs::directory_iterator entry(base, failed);
  for (; !failed && entry != fs::directory_iterator(); entry.increment(failed)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + kBlanks.size()) continue;
    const int folder = open_folder(entry->path());
    if (folder < 0) continue;
    std::error_code ignored;
    if (is_ours(folder) && ::flock(folder, LOCK_EX | LOCK_NB) == 0) {
      fs::remove_all(entry->path(), ignored);
    }
    ::close(folder);
  }
}

}  // namespace

Result<TemporaryFolder> TemporaryFolder::create() {
  const char* told = ::getenv("TMPDIR");
  const std::string base = told && *told ? told : "/tmp";
  static std::atomic<pid_t> swept{0};  // once a process, and a fork is another one
  if (swept.exchange(::getpid()) != ::getpid()) sweep(base);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string path = base + "/" + std::string(kPrefix) + std::string(kBlanks);
    if (!::mkdtemp(path.data())) break;
    // Between these lines another process may take it for one left behind, and remove it.
    const int lock = open_folder(path);
    if (lock >= 0) ::flock(lock, LOCK_EX);  // where there are no locks, nobody sweeps either
    if (lock >= 0 && is_ours(lock)) return TemporaryFolder(std::move(path), lock);
    if (lock >= 0) ::close(lock);
  }
  return Error{Code::kUsage, "base",
               fmt::format("no temporary folder can be made in '{}': {}", base, ::strerror(errno)),
               "", "set TMPDIR to a folder that can be written"};
}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}

TemporaryFolder::~TemporaryFolder() {
  if (lock_ < 0) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  ::close(lock_);
}

}  // namespace obelisk
