/// base/file.h — files: mapped for reading, and written whole or not at all.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace obelisk {

/// A read-only mapping of a whole file. An empty file maps to size 0.
class MappedFile {
 public:
  /// Errors: kUsage when the file is not there, is a folder or cannot be read.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  /// From now on open() reads a copy and maps nothing: a file that is cut short while it is used
  /// ends a process that has it mapped. A file that changes while it is read is kUsage then. For
  /// programs that outlive their files.
  static void open_copies(bool copies = true);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  MappedFile() = default;
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

Result<std::string> read_file(const std::string& path);

/// Writes beside the target, syncs, renames: a reader sees the old file or the new one, an
/// interrupted or failed write leaves none.
Status write_file(const std::string& path, std::string_view bytes);

}  // namespace obelisk
