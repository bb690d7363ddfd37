/// graph/test_texts.h — graphs as text that tests of several rooms share: FLOAT stands for an
/// element type, @random for a constant's numbers.
#pragma once

#include "graph/test_random.h"

namespace obelisk::graph {

struct TextCase {
  const char* name;
  const char* text;
};

inline std::string of_type(std::string text, const std::string& type) {
  for (size_t at; (at = text.find("FLOAT")) != std::string::npos;) text.replace(at, 5, type);
  return text;
}

inline Result<Graph> parse_random(std::string text, double most, unsigned seed = 11) {
  return parse(with_random(std::move(text), most, seed));
}

/// Readers behind a reshape of what they read, and readers that spread it.
inline constexpr TextCase kAdaptedGroups[] = {
    {"reshaped_softmax", R"(graph "g" {
  in %0 "x": FLOAT[8,30,48]
  const %1: i64[2] = [240, 48]
  const %2: i64[1] = [1]
  %3: FLOAT[8,30,48] = Exp(%0)
  %4: FLOAT[240,48] = Reshape(%3, %1)
  %5: FLOAT[240,1] = ReduceSum(%4, %2) {keepdims = 1}
  %6: FLOAT[240,48] = Div(%4, %5)
  out %6 "z"
  out %3 "e"
})"},
    {"reshaped_norm", R"(graph "g" {
  in %0 "x": FLOAT[67,96]
  in %1 "gain": FLOAT[12,8]
  in %2 "r": FLOAT[67,96]
  const %3: i64[1] = [1]
  const %4: i64[3] = [67, 12, 8]
  const %5: i64[2] = [67, 96]
  const %6: i64[3] = [67, 1, 1]
  %7: FLOAT[67,1] = ReduceMax(%0, %3) {keepdims = 1}
  %8: FLOAT[67,96] = Sub(%0, %7)
  %9: FLOAT[67,12,8] = Reshape(%8, %4)
  %10: FLOAT[67,12,8] = Mul(%9, %1)
  %11: FLOAT[67,1,1] = Reshape(%7, %6)
  %12: FLOAT[67,12,8] = Add(%10, %11)
  %13: FLOAT[67,96] = Reshape(%12, %5)
  %14: FLOAT[67,96] = Add(%13, %2)
  out %14 "z"
  out %10 "heads"
})"},
    {"spread_gate", R"(graph "g" {
  in %0 "x": FLOAT[140,1]
  in %1 "y": FLOAT[140,520]
  in %2 "b": FLOAT[140,1]
  const %3: i64[1] = [1]
  %4: FLOAT[140,1] = Tanh(%0)
  %5: FLOAT[140,520] = Mul(%4, %1)
  %6: FLOAT[140,1] = ReduceMax(%5, %3) {keepdims = 1}
  %7: FLOAT[140,1] = Add(%6, %2)
  %8: FLOAT[140,520] = Sub(%5, %7)
  out %8 "z"
  out %4 "gate"
})"},
    {"spread_beside", R"(graph "g" {
  in %0 "x": FLOAT[37,5]
  in %1 "y": FLOAT[37,5,6,7]
  const %2: i64[4] = [37, 5, 1, 1]
  %3: FLOAT[37,5] = Sigmoid(%0)
  %4: FLOAT[37,5,1,1] = Reshape(%3, %2)
  %5: FLOAT[37,5,6,7] = Mul(%1, %4)
  out %5 "z"
})"},
};

}  // namespace obelisk::graph
