/// tests/fuzz/mutate.h — structure-aware mutations: a file is parsed, one thing in it is changed so
/// that the rest still agrees with it, and it is written again.
///
///   FUZZ_MUTATOR(mutate_obk)        in tests/fuzz/obk_fuzz.cpp
///
/// With -DOBELISK_FUZZ=ON that makes it libFuzzer's custom mutator; fuzz_test calls the functions
/// themselves and looks at what comes out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace obelisk::fuzz {

/// Numbers by a seed (splitmix64).
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  size_t below(size_t count) { return count == 0 ? 0 : next() % count; }
  bool once_in(size_t count) { return below(count) == 0; }
  template <typename List>
  auto& pick(List& list) {
    return list[below(std::size(list))];
  }

 private:
  uint64_t state_;
};

/// Bytes changed without regard for what they mean, to at most so many.
using Scramble = std::function<std::string(std::string bytes, size_t most)>;

/// Another value for a number: near it, at an edge, or one of those that the file has elsewhere.
inline uint64_t another_number(uint64_t value, const std::vector<uint64_t>& others, Dice& dice) {
  constexpr uint64_t kEdges[] = {0,
                                 1,
                                 2,
                                 3,
                                 7,
                                 8,
                                 16,
                                 63,
                                 64,
                                 127,
                                 128,
                                 255,
                                 256,
                                 65535,
                                 65536,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 uint64_t{1} << 32,
                                 uint64_t{1} << 40,
                                 uint64_t{1} << 62,
                                 INT64_MAX,
                                 static_cast<uint64_t>(INT64_MIN),
                                 static_cast<uint64_t>(-1),
                                 static_cast<uint64_t>(-2)};
  switch (dice.below(8)) {
    case 0:
      return value + 1;
    case 1:
      return value - 1;
    case 2:
      return value * 2;
    case 3:
      return 0 - value;
    case 4:
      return value ^ (uint64_t{1} << dice.below(64));
    case 5:
      return dice.pick(kEdges);
    case 6:
      return value + dice.below(64) - 32;
    default:
      return others.empty() ? value / 2 : others[dice.below(others.size())];
  }
}

/// Compiled files (obk_mutate.cpp): a number, an entry of a table, a text, or a weight's bytes; all
/// offsets, sizes and checksums are made right.
std::string mutate_obk(std::string_view bytes, size_t most, Dice& dice, const Scramble& scramble);
/// The same bytes with format version, size and checksums made right where they lie.
void seal_obk(std::string& file);

/// ONNX models (onnx_mutate.cpp): a number, an op, an edge, a name everywhere, a tensor's shape or
/// type with its data, a subtree; all lengths are made right.
std::string mutate_onnx(std::string_view bytes, size_t most, Dice& dice, const Scramble& scramble);

}  // namespace obelisk::fuzz

#ifdef OBELISK_FUZZ
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
#define FUZZ_MUTATOR(mutate)                                                                     \
  extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most,             \
                                            unsigned seed) {                                     \
    ::obelisk::fuzz::Dice dice(seed);                                                            \
    const ::obelisk::fuzz::Scramble scramble = [](std::string bytes, size_t longest) {           \
      const size_t before = std::min(bytes.size(), longest);                                     \
      bytes.resize(longest);                                                                     \
      bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), before, longest)); \
      return bytes;                                                                              \
    };                                                                                           \
    const std::string out = ::obelisk::fuzz::mutate({reinterpret_cast<const char*>(data), size}, \
                                                    most, dice, scramble);                       \
    return std::copy_n(out.data(), std::min(out.size(), most), reinterpret_cast<char*>(data)) -  \
           reinterpret_cast<char*>(data);                                                        \
  }
#else
#define FUZZ_MUTATOR(mutate)
#endif
