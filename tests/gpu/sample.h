/// tests/gpu/sample.h: how much of device code that would run on a GPU is compiled where none is.
#pragma once

#include <cstdlib>

namespace obelisk {

/// True where all of it is, also what differs from a sample by sizes only (OBELISK_TEST_ALL).
inline bool compiles_all() { return getenv("OBELISK_TEST_ALL") != nullptr; }

}  // namespace obelisk
