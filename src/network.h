/// network.h — what the compiler begins with, out of a file.
#pragma once

#include "compile.h"

namespace obelisk::compiler {

/// A graph as text where the name ends in .ir, else a model's file, mapped. Errors: kUsage when it
/// cannot be read, kBadModel.
Result<Network> open_network(const std::string& path);

/// Names of a model's symbolic dimensions; empty of a graph.
std::vector<std::string> symbols_of(const Network& network);

/// The error of a compilation with the first node that cannot be run, if there are such.
Error with_cause(Error error, const frontends::ImportReport& report);

}  // namespace obelisk::compiler
