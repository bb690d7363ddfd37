/// obelisk/helpers.h — the programs and scripts that stand beside ours.
#pragma once

#include "base/process.h"

namespace obelisk::cli {

/// A program on the PATH, in /usr/local/cuda/bin or beside our helpers' Python; or empty.
std::string find_tool(const std::string& name);

/// One of our helper scripts: beside the program (a packed folder), or in the checkout that it was
/// built from.
std::string find_script(const std::string& name);

/// The Python that has our helpers' packages: $OBELISK_PYTHON, .venv beside the sources, python3 on
/// the PATH; or empty.
std::string find_python();

}  // namespace obelisk::cli
