/// tests/fuzz/fuzz.h — readers of untrusted bytes, as fuzzers and as an ordinary test.
///
///   FUZZ_TARGET(npy) { (void)parse_npy(bytes); }        in tests/fuzz/npy_fuzz.cpp
///
/// With -DOBELISK_FUZZ=ON (and clang) each file becomes a libFuzzer program `npy_fuzz`; without,
/// all of them are linked into `fuzz_test`, which replays tests/fuzz/corpus/npy/*. A case that once
/// broke a reader is kept there under the name of what was wrong. A target must answer any bytes:
/// no crash, no hang, no memory beyond what the bytes could fill.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace obelisk::fuzz {

using Bytes = std::span<const std::byte>;

struct Target {
  std::string name;
  void (*run)(Bytes);
};
std::vector<Target>& targets();  // in the replaying program
inline bool enlist(std::string name, void (*run)(Bytes)) {
  targets().push_back({std::move(name), run});
  return true;
}

}  // namespace obelisk::fuzz

#ifdef OBELISK_FUZZ
#define FUZZ_TARGET(name)                                                         \
  static void fuzz_##name(::obelisk::fuzz::Bytes bytes);                          \
  extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) { \
    fuzz_##name(std::as_bytes(std::span(data, size)));                            \
    return 0;                                                                     \
  }                                                                               \
  static void fuzz_##name(::obelisk::fuzz::Bytes bytes)
#else
#define FUZZ_TARGET(name)                                \
  static void fuzz_##name(::obelisk::fuzz::Bytes bytes); \
  [[maybe_unused]] static const bool enlisted_##name =   \
      ::obelisk::fuzz::enlist(#name, fuzz_##name);       \
  static void fuzz_##name(::obelisk::fuzz::Bytes bytes)
#endif
