// The loader of compiled files. The version and the checksums of what the fuzzer made up are made
// right first, so that it gets behind them; a file that is taken must also give its graph, or say
// why not. Its machine code is never run: that is trusted, as a program is.
#include <cstring>

#include "fuzz/fuzz.h"
#include "runtime/runtime.h"

using namespace obelisk;

namespace {

constexpr size_t kHeader = 24, kEntry = 40, kSections = 5,
                 kHeaderHash = kHeader + kSections * kEntry;

uint64_t number(const std::vector<std::byte>& bytes, size_t at) {
  uint64_t value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

void seal(std::vector<std::byte>& bytes, size_t at, const Hash& hash) {
  std::memcpy(bytes.data() + at, &hash.high, 8), std::memcpy(bytes.data() + at + 8, &hash.low, 8);
}

/// The weights' hashes, at the beginning of the tables, and the hash of those in the directory.
void seal_weights(std::vector<std::byte>& file) {
  const uint64_t size = file.size(), tables = number(file, kHeader + 8),
                 weights = number(file, kHeader + 4 * kEntry + 8);
  if (tables > size - 8 || weights > size) return;
  const uint64_t count = number(file, tables);
  if (count > (size - tables - 8) / 32) return;
  std::string all;
  for (uint64_t k = 0; k < count; ++k) {
    const size_t at = tables + 8 + k * 32;
    const uint64_t offset = number(file, at), length = number(file, at + 8);
    if (offset > size - weights || length > size - weights - offset) return;
    const Hash hash = hash_bytes(file.data() + weights + offset, length);
    seal(file, at + 16, hash);
    all += to_string(hash);
  }
  seal(file, kHeader + 4 * kEntry + 24, hash_text(all));
}

}  // namespace

FUZZ_TARGET(obk) {
  auto file = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  if (file->size() >= kHeaderHash + 16) {
    const uint64_t size = file->size();
    std::memcpy(file->data() + 4, &runtime::kObkFormat, 4);
    std::memcpy(file->data() + 8, &size, 8);
    seal_weights(*file);
    for (size_t kind = 0; kind + 1 < kSections; ++kind) {
      const size_t entry = kHeader + kind * kEntry;
      const uint64_t offset = number(*file, entry + 8), length = number(*file, entry + 16);
      if (offset > size || length > size - offset || offset < kHeaderHash + 16) continue;
      seal(*file, entry + 24, hash_bytes(file->data() + offset, length));
    }
    seal(*file, kHeaderHash, hash_bytes(file->data(), kHeaderHash));
  }
  const Result<runtime::Compiled> compiled =
      runtime::parse_obk(file->data(), file->size(), file, "fuzz.obk");
  if (!compiled.ok()) return;
  const Result<graph::Graph> graph = compiled->graph();
  if (graph.ok())
    CHECK(graph::verify(*graph).ok(), "a graph out of a compiled file does not verify");
}
