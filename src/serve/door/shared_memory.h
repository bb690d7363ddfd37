/// serve/door/shared_memory.h — regions of POSIX shared memory that clients on this machine
/// register by name.
///
/// Off unless switched on: who may register may read and write any region that the server's user
/// may.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "serve/door/fault.h"
#include "serve/door/infer.h"

namespace obelisk::serve::door {

class SharedMemory {
 public:
  explicit SharedMemory(bool on) : on_(on) {}
  bool on() const { return on_; }

  struct Status {
    std::string name, key;
    uint64_t offset = 0, bytes = 0;
  };
  /// Errors: kUnimplemented when switched off, kBadRequest for a region that is not there or too
  /// small, kConflict for a name that is taken.
  Checked register_region(const Status& region);
  /// Empty: all.
  Checked unregister(const std::string& name);
  Maybe<std::vector<Status>> status(const std::string& name) const;

  struct View {
    std::span<std::byte> bytes;
    std::shared_ptr<void> keep;
  };
  Maybe<View> view(const Region& region) const;

 private:
  struct Mapped;
  bool on_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Mapped>> regions_;
};

}  // namespace obelisk::serve::door
