/// codegen/body.h — one body as C++ text, and the parameters that this work gives it.
///
///   in   Group, Work (its folded nest), the values' types
///   out  text, traits, params, scratch bytes; of these at most `ahead_bytes` for rows that are
///   loaded ahead of their use
///
/// Loops: rows of the task · for each pass, the outer columns · the lanes (the innermost columns,
/// or rows where columns are strided). An expression is printed once, at the outermost of the three
/// levels on which everything it depends on is known.
#pragma once

#include <string>
#include <vector>

#include "codegen/body_traits.h"
#include "schedule/schedule.h"

namespace obelisk::codegen {

struct EmittedBody {
  std::string text;
  BodyTraits traits;
  std::vector<int64_t> params;
  int64_t scratch = 0;      // bytes of scratchpad memory, the rows' part included
  int64_t row_scratch = 0;  // what each row in flight needs: staged values; behind the tile's part
};

EmittedBody emit_body(const graph::Graph& graph, const stitch::Group& group,
                      const schedule::Work& work, const std::vector<stitch::Layout>& layouts,
                      bool packed_b, const kernels::TileLibrary& tiles, int64_t ahead_bytes);

}  // namespace obelisk::codegen
