/// runtime/cuda/assembler_log.h — what the assembler says of kernels: registers, spills, matrix
/// instructions that it serialised.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/runtime.h"

namespace obelisk::runtime::cuda {

/// Where the assembler serialised wgmma (C75xx), which is slower than mma.sync: the bodies by
/// number, or nothing for a function that is more than one body's.
struct Serialised {
  bool any = false, known = true;  // known: all of them are named
  std::set<int> bodies;
  std::string first;  // what the assembler said of the first
};
Serialised serialised(const std::string& log);

/// What "ptxas -v" says, by function. Functions that are called are their own entries.
std::vector<KernelReport> read_assembler_log(const std::string& log);

}  // namespace obelisk::runtime::cuda
