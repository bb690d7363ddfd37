/// base/file_writer.h — a file written piece by piece, whole or not at all.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace obelisk {

/// Writes to a file without a name in the target's folder; commit() names and renames it.
/// Destroyed or killed before that, it leaves nothing behind. Errors: kUsage, kMemory.
class FileWriter {
 public:
  static Result<std::unique_ptr<FileWriter>> create(const std::string& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;

  /// Appends. After an error only destroying it makes sense.
  Status write(std::string_view bytes);
  /// Zeros up to a multiple of `alignment`, 4096 at most.
  Status pad_to(size_t alignment);
  size_t size() const { return size_; }  // written so far
  /// kNow: the bytes are on the disk when it returns; kSoon: when the system writes them, so that
  /// after a power cut (not after a killed process) the file may be broken or the old one.
  enum OnDisk { kNow, kSoon };
  Status commit(OnDisk when = kNow);

 private:
  FileWriter() = default;
  std::string path_, temporary_;
  int file_ = -1;
  bool nameless_ = false;  // else it lies at temporary_ while it is written
  size_t size_ = 0;
};

}  // namespace obelisk
