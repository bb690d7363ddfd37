/// obelisk/serve.h — the verb `serve`, with flags of its own.
#pragma once

#include <functional>

#include "flags.h"

namespace obelisk::cli {

/// Adds the flags; what is returned is the verb's body.
std::function<int()> add_serve(CLI::App& verb, Flags& flags);

}  // namespace obelisk::cli
