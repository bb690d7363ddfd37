/// runtime/cuda/source.h — a program's device code as one text, and in which parts it is compiled.
///
///   Program ── device_source ──▶ text (images.h compiles it)
#pragma once

#include <set>

#include "runtime/cuda/nvrtc.h"
#include "runtime/cuda/tables.h"
#include "runtime/runtime.h"

namespace obelisk::runtime::cuda {

/// The device headers, every distinct body, and one kernel over all (granularity "mono") or one a
/// body. Errors: kUnsupported, naming an op that has no body.
/// `narrow`: bodies whose tiles must not take wgmma. `part`: only the bodies of that part
/// (part_of); -1: all.
Result<std::string> device_source(const Program& program, const std::set<int>& narrow = {},
                                  int part = -1);

/// In how many parts the device code is compiled, at once on the machine's cores: so many for a
/// program on any machine, so that the same program gives the same bytes. And which of so many
/// parts has a body.
int part_count(const Program& program);
int part_of(int body, int parts);
/// What the text is compiled with beside it.
std::vector<std::string> device_defines(const Program& program, const LoadOptions& options);

/// Whether kernels have the pages of weights that their code takes for granted (OBK_RING): a tile
/// that is sure of them would wait for ever. Errors: kDevice, where the GPU has less shared memory
/// than GPUs of its architecture, for which the code was compiled.
Status check_pages(const Program& program, const std::vector<Launch>& launches);

/// The kernel of a body: "obk_program" of all, "obk_kernel_K".
std::string kernel_name(int body);

}  // namespace obelisk::runtime::cuda
