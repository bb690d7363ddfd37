/// obelisk/helpers.h — the programs and scripts that stand beside ours.
#pragma once

#include "base/process.h"
#include "base/python.h"

namespace obelisk::cli {

/// A program of NVIDIA's toolkit: on the PATH, in /usr/local/cuda/bin, beside our helpers' Python,
/// or in a wheel of a Python environment (base/python.h, where the device compiler is looked for,
/// too); or empty.
std::string find_tool(const std::string& name);
/// nvdisasm, or $OBELISK_NVDISASM; or empty.
std::string find_disassembler();
/// The command that installs a Python package where such programs, and our helpers, are looked for.
std::string pip_install(const std::string& package);

/// One of our helper scripts: beside the program (a packed folder), or in the checkout that it was
/// built from.
std::string find_script(const std::string& name);

}  // namespace obelisk::cli
