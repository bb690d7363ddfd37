/// runtime/cuda/nvrtc.h — the run-time compiler of device code, found when it is needed: text in,
/// machine code out.
///
/// Looked for in $OBELISK_NVRTC (a folder or the library), /usr/local/cuda, the Python wheel
/// nvidia-cuda-nvrtc in the environments out of which base/python.h loads libraries
/// ($OBELISK_PYTHON, the one that our own program lies in, the .venv beside it, the system's
/// packages), then the system's library path. A wheel's builtins library is loaded first, for the
/// compiler looks for it by name alone. One older than 12.4 is passed over, or an error where
/// $OBELISK_NVRTC names it. One of a later major version than the driver's is taken only where
/// there is no other: the driver would not load what it makes. Compiling needs no GPU.
#pragma once

#include <string>
#include <vector>

#include "base/base.h"

namespace obelisk::runtime::cuda {

struct Cubin {
  std::string bytes;  // machine code for one architecture
  std::string ptx;    // the same before the assembler, as text
  std::string log;    // the compiler's warnings and the assembler's report of registers and spills
};

/// Where the compiler was found, or kBuild with the places (or the one that is too old) and the
/// command that mends it.
Result<std::string> find_nvrtc();

/// The same with its version, "/usr/lib/libnvrtc.so.13 (version 13.0)"; kBuild too where this
/// machine's driver would not load what it makes.
Result<std::string> find_nvrtc_of_driver();

/// The command that installs one whose code this machine's driver loads.
std::string how_to_install();

/// What the driver said when it loaded machine code, as a status; where it cannot read the code,
/// with what it takes and the way out.
Status check_image(int code);

/// Its version, "13.0".
std::string nvrtc_version();

/// What the environment adds: $OBELISK_LINEINFO, line numbers for profilers (it doubles
/// the machine code's size); $OBELISK_DEVICE_DEFINES, "NAME=value NAME", for experiments with
/// device code; $OBELISK_DEVICE_OPTIONS, other options as they are.
std::vector<std::string> wished_options();

/// Compiles a text that includes nothing but the device headers. `architecture`: "sm_90a".
/// `defines`: "NAME=value". Errors: kBuild with the compiler's first lines.
Result<Cubin> compile_cubin(const std::string& text, const std::string& architecture,
                            const std::vector<std::string>& defines = {});

}  // namespace obelisk::runtime::cuda
