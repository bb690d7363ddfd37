/// obelisk/source.h — the file a verb works on, with the inputs that were given for it.
///
/// A model's dimensions are bound by --shape and by the inputs; inputs whose values shapes depend
/// on become constants.
#pragma once

#include "flags.h"

namespace obelisk::cli {

enum class FileKind { kModel, kCompiled, kText };

struct Source {
  FileKind kind = FileKind::kModel;
  compiler::Network network;   // kModel, kText; with --portable, kCompiled too
  runtime::Compiled compiled;  // kCompiled
  NamedTensors given;          // by input name
  frontends::ImportOptions import;
};

/// Errors: kUsage for files and flags, kBadModel for what is in them.
Result<Source> open_source(const Flags& flags);

/// Tensors for the ports in order: the given ones, and generated ones for the rest (with --seed, or
/// when nothing was given). `graph` is asked for only when something is generated. Errors: kUsage,
/// naming an input that is not given, unknown, or of another type.
Result<std::vector<Tensor>> feeds(const Flags& flags, const Source& source,
                                  const std::vector<runtime::Port>& ports,
                                  const std::function<Result<graph::Graph>()>& graph);

std::vector<runtime::Port> input_ports(const graph::Graph& graph);

}  // namespace obelisk::cli
