/// runtime/cpu/objects.h — bodies as machine code: the host compiler, the object cache, loading.
#pragma once

#include <string>
#include <vector>

#include "runtime/runtime.h"

namespace obelisk::runtime::cpu {

/// A loaded shared object and its body. Closes when destroyed.
class Object {
 public:
  /// `path`: a shared object on disk (or /proc/self/fd/N).
  static Result<std::unique_ptr<Object>> open(const std::string& path);
  /// The same of bytes in memory, through an anonymous file.
  static Result<std::unique_ptr<Object>> open_bytes(std::string bytes);
  /// One body of a BodyLibrary, which stays open.
  static std::unique_ptr<Object> borrow(ObkBody body);
  ~Object();
  Object(const Object&) = delete;
  ObkBody body() const { return body_; }
  const std::string& bytes() const { return bytes_; }

 private:
  Object() = default;
  std::string bytes_;
  // open as long as the object: the loader knows objects by path, and its number is part of it
  int file_ = -1;
  void* handle_ = nullptr;
  ObkBody body_ = nullptr;
};

/// Compiles (or finds in the cache) and opens each body, in order. Errors: kBuild, kUsage.
Result<std::vector<std::unique_ptr<Object>>> build_objects(
    const std::vector<codegen::BodyText>& bodies, const LoadOptions& options, LoadReport& report);

/// The machine code that a program brought along. Errors: kBuild, naming features that this CPU
/// lacks.
Result<std::vector<std::unique_ptr<Object>>> carried_objects(const Program& program);

}  // namespace obelisk::runtime::cpu
