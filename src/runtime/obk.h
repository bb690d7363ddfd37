/// runtime/obk.h — the compiled file: one program with its weights, source and machine code, mapped and not copied.
///
///   header    magic "OBK\x1a", format version, size of the file, number of sections
///   sections  kind, offset, size and xxHash3-128 of each; then a hash of the header itself
///   kinds     tables (ports, works, tasks, parameters) · graph (text) · bodies (source) · objects (machine code by body, with the
///             CPU features that it needs) · weights (each at a multiple of 64)
///
/// Numbers are little-endian. Every count, offset and size is checked against the file before it is used; indices in tables against what
/// they index. No times and no paths, so that equal programs give equal bytes. Weights of the portable graph that the program only
/// holds packed are stored a second time, for recompiling.
///
/// An .obk carries native code and is trusted as a program is: `--portable` ignores the objects and compiles from the graph.
#pragma once

#include <string>

#include "runtime/program.h"

namespace obelisk::runtime {

/// The bytes of the file. `objects`: machine code by body, of Executable::objects().
std::string obk_bytes(const Program& program, const graph::Graph& graph);

struct Compiled {
  std::shared_ptr<Program> program;  // weights are views of the mapping
  std::string graph_text;
  graph::Weights graph_weights;
  /// Parsed on demand: opening is fast, compiling again is not.
  Result<graph::Graph> graph() const { return graph::parse(graph_text, graph_weights); }
};

/// Checksums of everything but weights beyond this size are checked when opening; check_weights checks all.
inline constexpr int64_t kEagerWeights = int64_t{32} << 20;

/// Errors: kUsage when the file cannot be read; kBadModel when it is truncated, damaged, or of a version that this program does not know.
Result<Compiled> open_obk(const std::string& path, bool check_weights = false);
Result<Compiled> parse_obk(const void* data, size_t size, std::shared_ptr<const void> owner, const std::string& name,
                           bool check_weights = false);

}  // namespace obelisk::runtime
