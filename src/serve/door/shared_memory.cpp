#include "serve/door/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace obelisk::serve::door {
namespace {

constexpr size_t kMostRegions = 4096;

Fault switched_off() {
  return {Cause::kUnimplemented,
          "shared memory is switched off; --shared-memory lets clients of this machine use it"};
}

}  // namespace

struct SharedMemory::Mapped {
  Status status;
  std::byte* mapped = nullptr;
  size_t mapped_bytes = 0;
  std::byte* data = nullptr;
  ~Mapped() {
    if (mapped) munmap(mapped, mapped_bytes);
  }
};

Checked SharedMemory::register_region(const Status& wanted) {
  if (!on_) return switched_off();
  if (wanted.bytes == 0) return bad_request(fmt::format("region '{}' has no bytes", wanted.name));
  // One name in /dev/shm: no path out of it.
  const std::string key = wanted.key.starts_with('/') ? wanted.key : "/" + wanted.key;
  if (key.size() < 2 || key.size() > 255 || key.find('/', 1) != std::string::npos ||
      key.find('\0') != std::string::npos)
    return bad_request(fmt::format(
        "region '{}': the key is the name of a shared memory object, without a path", wanted.name));
  const int file = shm_open(key.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (file < 0)
    return bad_request(
        fmt::format("region '{}': '{}' cannot be opened: {}", wanted.name, key, strerror(errno)));
  struct stat info {};
  const bool measured = fstat(file, &info) == 0;
  const auto size = static_cast<uint64_t>(std::max<int64_t>(info.st_size, 0));
  if (!measured || wanted.offset > size || wanted.bytes > size - wanted.offset) {
    close(file);
    return bad_request(fmt::format("region '{}': {} bytes from {} on do not fit '{}', which has {}",
                                   wanted.name, wanted.bytes, wanted.offset, key, size));
  }
  auto region = std::make_shared<Mapped>();
  region->status = wanted;
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)),
                 begin = wanted.offset / page * page;
  region->mapped_bytes = wanted.offset - begin + wanted.bytes;
  void* at = mmap(nullptr, region->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                  static_cast<off_t>(begin));
  close(file);
  if (at == MAP_FAILED)
    return bad_request(
        fmt::format("region '{}' cannot be mapped: {}", wanted.name, strerror(errno)));
  region->mapped = static_cast<std::byte*>(at);
  region->data = region->mapped + (wanted.offset - begin);
  const std::lock_guard lock(mutex_);
  if (regions_.size() >= kMostRegions)
    return Fault{Cause::kUnavailable,
                 fmt::format("{} regions are registered, no more are allowed", kMostRegions)};
  if (!regions_.try_emplace(wanted.name, std::move(region)).second)
    return Fault{Cause::kBadRequest, fmt::format("region '{}' is registered already", wanted.name)};
  return std::nullopt;
}

Checked SharedMemory::unregister(const std::string& name) {
  if (!on_) return switched_off();
  const std::lock_guard lock(mutex_);
  if (name.empty())
    regions_.clear();
  else
    regions_.erase(name);
  return std::nullopt;
}

Maybe<std::vector<SharedMemory::Status>> SharedMemory::status(const std::string& name) const {
  std::vector<Status> out;
  if (!on_) {
    if (name.empty()) return out;
    return switched_off();
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [key, region] : regions_)
    if (name.empty() || name == key) out.push_back(region->status);
  if (!name.empty() && out.empty())
    return bad_request(fmt::format("there is no region '{}'", name));
  return out;
}

Maybe<SharedMemory::View> SharedMemory::view(const Region& wanted) const {
  if (!on_) return switched_off();
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(wanted.name);
  if (found == regions_.end())
    return bad_request(fmt::format("there is no region '{}'", wanted.name));
  const Mapped& region = *found->second;
  if (wanted.offset > region.status.bytes || wanted.bytes > region.status.bytes - wanted.offset)
    return bad_request(fmt::format("{} bytes from {} on do not fit region '{}', which has {}",
                                   wanted.bytes, wanted.offset, wanted.name, region.status.bytes));
  return View{{region.data + wanted.offset, wanted.bytes}, found->second};
}

}  // namespace obelisk::serve::door
