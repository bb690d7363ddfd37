#include "runtime/cuda/row_maps.h"

#include "runtime/cuda/layout.h"

namespace obelisk::runtime::cuda {

Result<int64_t> async_rows(const Program& program, const WorkRecord& work, Tables& tables) {
  if (work.body < 0 || !program.bodies[work.body].traits.async_rows) return 0;
  const codegen::AsyncRows& async = *program.bodies[work.body].traits.async_rows;
  constexpr int64_t kMost = 256;  // rows and blocks of a copy
  const int64_t a = async.a, rows = async.rows, pitch = async.pitch, together = async.blocks,
                box = async.box;
  const bool inside = a >= 0 && a < static_cast<int64_t>(work.operands.size()) && rows > 0 &&
                      pitch >= 64 && pitch % 8 == 0 && together > 0 && together <= kMost &&
                      box > 0 && box <= kMost && rows <= INT32_MAX / pitch &&
                      work.operands[a].kind == BufferKind::kArena && work.operands[a].index >= 0 &&
                      work.operands[a].index % 16 == 0 &&
                      rows * pitch * 2 <= program.arena.count - work.operands[a].index;
  if (!inside)
    return Error{Code::kBuild, "runtime",
                 fmt::format("a product requests rows as {}; wanted: a matrix of 16-bit numbers "
                             "inside the workspace",
                             to_string(program.bodies[work.body].traits)),
                 work.label, "compile the model again"};
  const int64_t from = work.operands[a].index;
  for (const ArenaMap& map : tables.maps)
    if (map.from == from && map.rows.rows == rows && map.rows.pitch == pitch &&
        map.rows.blocks == together && map.rows.together == box)
      return map.at;
  tables.maps.push_back(
      {aligned(program.arena.count) + static_cast<int64_t>(tables.maps.size()) * obk::kMapBytes,
       from,
       {0, rows, pitch, together, box}});
  tables.map_bytes = tables.maps.back().at + obk::kMapBytes - program.arena.count;
  return tables.maps.back().at;
}

Status make_maps(const Tables& tables, DevicePointer arena) {
  if (tables.maps.empty()) return ok_status();
  TRY(const Driver* driver, load_driver());
  for (const ArenaMap& map : tables.maps) {
    alignas(64) char text[128];
    TRY_STATUS(encode_rows(arena + static_cast<uint64_t>(map.from), map.rows.rows, map.rows.pitch,
                           map.rows.blocks, map.rows.together, map.rows.size, map.rows.tf32, text));
    TRY_STATUS(
        copy_in(*driver, arena + static_cast<uint64_t>(map.at), text, sizeof text, "copy a map"));
  }
  return ok_status();
}

}  // namespace obelisk::runtime::cuda
