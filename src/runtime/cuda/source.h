/// runtime/cuda/source.h — a program's device code as one text, and what the compiler said about
/// it.
///
///   Program ── device_source ──▶ text ── build_image ──▶ Image (machine code, kernels' registers)
///
/// Images are kept in the object cache by the hash of text, device headers, architecture and
/// compiler, published by rename.
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
/// program on any machine, so that the same program gives the same bytes. And which part has a
/// body.
int part_count(const Program& program);
int part_of(const Program& program, int body);
/// What the text is compiled with beside it.
std::vector<std::string> device_defines(const Program& program, const LoadOptions& options);

/// Whether kernels have the pages of weights that their code takes for granted (OBK_RING): a tile
/// that is sure of them would wait for ever. Errors: kDevice, where the GPU has less shared memory
/// than GPUs of its architecture, for which the code was compiled.
Status check_pages(const Program& program, const std::vector<Launch>& launches);

/// The kernel of a body: "obk_program" of all, "obk_kernel_K".
std::string kernel_name(int body);

struct Image {
  std::string bytes;
  std::string log;                    // the assembler's
  std::vector<KernelReport> kernels;  // each function that it reports, by name
  bool cached = false;
};

/// An image as the cache and compiled files keep it: machine code and log.
std::string to_entry(const Image& image);
/// Errors: kBuild, when the bytes are no such entry.
Result<Image> from_entry(const std::string& bytes);

/// Compiles, or finds in the cache: an image a part. Errors: kBuild, also where the assembler
/// reports what means a broken kernel: instructions of the tensor cores that were serialised, or a
/// tile that spills.
Result<std::vector<Image>> build_images(const Program& program, const std::string& architecture,
                                        const LoadOptions& options);

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

/// A program's kernels for its report: how often each is launched and with how much shared memory;
/// and a warning for each generated kernel whose registers were spilled, with its name, its body's
/// and the bytes, and one for all functions that kernels call.
void report_kernels(const Program& program, const std::vector<Image>& images,
                    const std::vector<Launch>& launches, DeviceReport& report);

}  // namespace obelisk::runtime::cuda
