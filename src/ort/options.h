/// ort/options.h — the provider's options in a session: text by name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "obelisk/obelisk.h"

namespace obelisk::ort {

/// Names as in obelisk::CompileOptions. Failure, kUsage, for a name or a value that is none,
/// kDevice's too, for a GPU that is not here.
CompileOptions options_of(const std::vector<std::pair<std::string, std::string>>& given);

}  // namespace obelisk::ort
