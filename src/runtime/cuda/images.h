/// runtime/cuda/images.h — a program's machine code: compiled in parts at once, kept in the object
/// cache, judged by what the assembler said, reported.
///
///   Program ── build_images ──▶ Image (machine code, kernels' registers), one a part
///
/// Images are kept in the object cache by the hash of text, device headers, architecture and
/// compiler, published by rename.
#pragma once

#include "runtime/cuda/source.h"

namespace obelisk::runtime::cuda {

struct Image {
  std::string bytes;
  std::string log;                    // the assembler's
  std::vector<KernelReport> kernels;  // each function that it reports, by name
  bool cached = false;
};

/// An image as the cache and compiled files keep it: machine code and log.
std::string to_entry(const Image& image);
/// Errors: kBuild, when the bytes are no such entry, or its code takes parameters that are laid out
/// otherwise than this program writes them.
Result<Image> from_entry(const std::string& bytes);

/// Compiles, or finds in the cache: an image a part. Errors: kBuild, also where the assembler
/// reports what means a broken kernel: instructions of the tensor cores that were serialised, or a
/// tile that spills.
Result<std::vector<Image>> build_images(const Program& program, const std::string& architecture,
                                        const LoadOptions& options);

/// A program's kernels for its report: how often each is launched and with how much shared memory;
/// and a warning for each generated kernel whose registers were spilled, with its name, its body's
/// and the bytes, and one for all functions that kernels call.
void report_kernels(const Program& program, const std::vector<Image>& images,
                    const std::vector<Launch>& launches, DeviceReport& report);

}  // namespace obelisk::runtime::cuda
