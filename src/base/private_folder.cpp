#include "base/private_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/file.h"

namespace obelisk {
namespace {

constexpr size_t kKeyBytes = 32, kTagBytes = 32;
constexpr char kKey[] = "key";

struct Descriptor {
  int number = -1;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

/// The bytes of a regular file that this user owns; `only_ours`: and that nobody else can read or
/// write.
std::optional<std::string> read_own_file(int folder, const std::string& name, bool only_ours) {
  const Descriptor file{
      openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)};
  struct stat about {};
  if (file.number < 0 || fstat(file.number, &about) != 0) return std::nullopt;
  if (!S_ISREG(about.st_mode) || about.st_uid != geteuid() ||
      (only_ours && (about.st_mode & 077) != 0))
    return std::nullopt;
  std::string bytes(static_cast<size_t>(about.st_size), '\0');
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t got = read(file.number, bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    at += static_cast<size_t>(got);
  }
  return bytes;
}

/// A new key, unless another process was first.
bool make_key(int folder) {
  char key[kKeyBytes];
  if (getrandom(key, sizeof key, 0) != static_cast<ssize_t>(sizeof key)) return false;
  const std::string fresh = fmt::format("key.{}.{}", getpid(), reinterpret_cast<uintptr_t>(&key));
  bool made = false;
  {
    const Descriptor file{
        openat(folder, fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)};
    made =
        file.number >= 0 && write(file.number, key, sizeof key) == static_cast<ssize_t>(sizeof key);
  }
  if (made) made = linkat(folder, fresh.c_str(), folder, kKey, 0) == 0 || errno == EEXIST;
  unlinkat(folder, fresh.c_str(), 0);
  return made;
}

Error refused(const std::string& path, const std::string& why, std::string hint) {
  return {Code::kUsage, "base", fmt::format("'{}' {}", path, why), "", std::move(hint)};
}

}  // namespace

Result<std::shared_ptr<const PrivateFolder>> PrivateFolder::open(const std::string& path) {
  std::error_code failed;
  if (const auto parent = std::filesystem::path(path).parent_path(); !parent.empty())
    std::filesystem::create_directories(parent, failed);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return refused(path, fmt::format("cannot be made: {}", strerror(errno)),
                   fmt::format("mkdir -p '{}'", path));
  Descriptor folder{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  struct stat about {};
  if (folder.number < 0 || fstat(folder.number, &about) != 0)
    return refused(path, fmt::format("cannot be opened: {}", strerror(errno)),
                   "name another folder");
  if (about.st_uid != geteuid())
    return refused(path,
                   fmt::format("belongs to user {}, not to this one ({})", about.st_uid, geteuid()),
                   "name a folder of your own");
  if ((about.st_mode & 022) != 0)
    return refused(path,
                   fmt::format("can be written by others (mode {:04o})", about.st_mode & 07777),
                   fmt::format("chmod 700 '{}'", path));
  if (faccessat(folder.number, ".", W_OK, AT_EACCESS) != 0)
    return refused(path, "cannot be written", fmt::format("chmod 700 '{}'", path));
  std::optional<std::string> key = read_own_file(folder.number, kKey, true);
  if (!key && faccessat(folder.number, kKey, F_OK, AT_SYMLINK_NOFOLLOW) != 0 &&
      make_key(folder.number))
    key = read_own_file(folder.number, kKey, true);
  if (!key || key->size() != kKeyBytes)
    return refused(
        path, "has no key that only this user can read, and none can be made",
        fmt::format("rm -f '{}/{}', and see that there is space on the disk", path, kKey));
  const int kept = std::exchange(folder.number, -1);
  return std::shared_ptr<const PrivateFolder>(new PrivateFolder(path, kept, std::move(*key)));
}

PrivateFolder::~PrivateFolder() { close(folder_); }

std::string PrivateFolder::tag(const std::string& name, std::string_view bytes) const {
  crypto_generichash_state state;
  std::string tag(kTagBytes, '\0');
  crypto_generichash_init(&state, reinterpret_cast<const unsigned char*>(key_.data()), key_.size(),
                          kTagBytes);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(name.c_str()),
                            name.size() + 1);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(bytes.data()),
                            bytes.size());
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(tag.data()), kTagBytes);
  return tag;
}

std::optional<std::string> PrivateFolder::get(const std::string& name) const {
  std::optional<std::string> bytes = read_own_file(folder_, name, false);
  if (!bytes || bytes->size() < kTagBytes) return std::nullopt;
  const std::string told = bytes->substr(bytes->size() - kTagBytes);
  bytes->resize(bytes->size() - kTagBytes);
  if (sodium_memcmp(told.data(), tag(name, *bytes).data(), kTagBytes) != 0) return std::nullopt;
  return bytes;
}

Status PrivateFolder::put(const std::string& name, std::string_view bytes) const {
  std::string all(bytes);
  all += tag(name, bytes);
  return write_file(fmt::format("/proc/self/fd/{}/{}", folder_, name), all);
}

}  // namespace obelisk
