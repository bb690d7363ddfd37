/// runtime/obk.h — the compiled file: one program with its weights, source and machine code, mapped
/// and not copied.
///
///   header    magic "OBK\x1a", format version, size of the file, number of sections
///   sections  kind, offset, size and xxHash3-128 of each; then a hash of the header itself
///   kinds     tables (weights' places and hashes, ports, works, tasks, parameters) · graph (text)
///   · bodies (source and traits) · objects (machine
///             code by body, with the CPU features that it needs) · weights (each at a multiple of
///             64)
///
/// Numbers are little-endian. Every count, offset and size is checked against the file before it is
/// used; indices in tables against what they index. No times and no paths, so that equal programs
/// give equal bytes. A weight that the program holds packed is stored packed only: the portable
/// graph's is found in it again (packing.h).
///
/// An .obk carries native code and is trusted as a program is: `--portable` ignores the objects and
/// compiles from the graph.
#pragma once

#include <string>

#include "runtime/program.h"

namespace obelisk::runtime {

class Executable;

inline constexpr uint32_t kObkFormat =
    15;  // the version of the format that is written, and the only one that is read

/// Writes the file whole or not at all, weights one by one. `graph` is what the program was made
/// from, after the passes. `verified`: on what its answers were compared with the reference, "every
/// row" or "3 of 128 rows of 'y'"; empty where they were not.
Status write_obk(const std::string& path, const Executable& executable, const graph::Graph& graph,
                 const std::string& verified);

/// Of all that decides what a program answers: tables, weights, source and machine code.
Hash fingerprint(const Executable& executable);

struct Compiled {
  std::shared_ptr<Program> program;  // weights are views of the mapping
  std::string graph_text;
  graph::Weights graph_weights;        // without those that are packed
  std::map<Hash, int> graph_packings;  // which packing each of those is in
  std::string verified;                // as it was written
  /// Parsed on demand: opening is fast, compiling again is not. Errors: kBadModel when a weight is
  /// not what the graph says.
  Result<graph::Graph> graph() const;
};

/// All checksums are checked when opening, but those of weights of more bytes than this together;
/// check_weights checks them too.
inline constexpr int64_t kEagerWeights = int64_t{32} << 20;

/// Errors: kUsage when the file cannot be read; kBadModel when it is truncated, damaged, or of a
/// version that this program does not know.
Result<Compiled> open_obk(const std::string& path, bool check_weights = false);
Result<Compiled> parse_obk(const void* data, size_t size, std::shared_ptr<const void> owner,
                           const std::string& name, bool check_weights = false);

}  // namespace obelisk::runtime
