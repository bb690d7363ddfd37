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
  ~Object();
  Object(const Object&) = delete;
  ObkBody body() const { return body_; }

 private:
  Object() = default;
  void* handle_ = nullptr;
  ObkBody body_ = nullptr;
};

/// Compiles (or finds in the cache) and opens each body, in order. Errors: kBuild, kUsage.
Result<std::vector<std::unique_ptr<Object>>> build_objects(const std::vector<codegen::BodyText>& bodies, const LoadOptions& options,
                                                           LoadReport& report);

}  // namespace obelisk::runtime::cpu
