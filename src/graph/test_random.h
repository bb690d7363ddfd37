/// graph/test_random.h — numbers for constants that texts of tests leave open.
#pragma once

#include <random>
#include <string>

#include "graph/graph.h"

namespace obelisk::graph {

/// The text with multiples of 1/512 up to `most` in size for @random: the same ones each time,
/// whatever else the text says; others by another `seed`.
inline std::string with_random(std::string text, double most, unsigned seed = 11) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> number(static_cast<int>(-most * 512),
                                            static_cast<int>(most * 512));
  std::string out;
  size_t done = 0;
  for (size_t at; (at = text.find("@random", done)) != std::string::npos; done = at + 7) {
    const size_t open = text.rfind('[', at), close = text.rfind(']', at);
    int64_t count = 1;
    for (size_t from = open + 1; from < close; from = text.find_first_of(",]", from) + 1)
      count *= atoll(text.c_str() + from);
    out += text.substr(done, at - done) + "[";
    for (int64_t k = 0; k < count; ++k)
      out += fmt::format("{}{}", k ? ", " : "", number(random) / 512.0);
    out += "]";
  }
  return out + text.substr(done);
}

}  // namespace obelisk::graph
