/// codegen/codegen.h — the door of `codegen`: works become readable source, shapes become
/// parameters.
///
///   in   Graph, Plan, TaskGraph
///   out  Source: distinct bodies (text and traits), and for every work its body and its parameters
///
/// For cores a body's text holds no extent, stride or offset: those are numbered as they are met
/// and travel in the work's parameter list, so that equal layers share one body and a new batch
/// size is new data. For GPUs they are constants of the text (vectors.h).
#pragma once

#include <string>
#include <vector>

#include "codegen/body_traits.h"
#include "schedule/schedule.h"

namespace obelisk::codegen {

struct BodyText {
  std::string text;   // a whole translation unit that defines `obk_body`
  BodyTraits traits;  // how its kernel is built and launched
  Hash hash;          // of both
  std::string label;  // the ops of the first work that uses it, for people
};

struct Source {
  std::vector<BodyText> bodies;
  std::vector<int> body_of_work;             // -1: an op without a body (custom)
  std::vector<std::vector<int64_t>> params;  // by work
  struct Scratch {
    int64_t bytes = 0, row = 0;
  };  // scratchpad memory: all, and the part of it that each row in flight needs
  std::vector<Scratch> scratch;  // by work
  const kernels::TileLibrary* tiles =
      nullptr;  // whose packed weights and scratch the bodies expect
};

/// C++ in the dialect (kernels/README.md) that cores and GPUs read, one function a body. `tiles`:
/// the target's.
Source emit(const graph::Graph& graph, const stitch::Plan& plan, const schedule::TaskGraph& tasks,
            const kernels::TileLibrary& tiles = kernels::kCpuTiles);

}  // namespace obelisk::codegen
