/// base/temporary_folder.h — a private folder that is removed with its owner, even one that was
/// killed.
#pragma once

#include <string>

#include "base/result.h"

namespace obelisk {

/// A folder "obelisk.XXXXXX" in $TMPDIR or /tmp that only this user can read. Destroyed, it removes
/// all that lies in it. Its owner holds a lock on it, which the system takes back from a killed
/// program: the first folder of a process removes those left without a lock beside it.
class TemporaryFolder {
 public:
  /// Errors: kUsage where no folder can be made.
  static Result<TemporaryFolder> create();
  TemporaryFolder(TemporaryFolder&& other) noexcept;
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }
  /// The descriptor that holds the lock: a child that inherits it keeps the folder until it ends.
  int lock() const { return lock_; }

 private:
  TemporaryFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_;
};

}  // namespace obelisk
