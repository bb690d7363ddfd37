// The call of an attention tile: its operands, where its answer goes, all keys or one split of
// them.
#include <bit>

#include "codegen/body_emitter.h"
#include "codegen/scalars.h"
#include "kernels/kernels.h"

namespace obelisk::codegen {

/// The call of the tile, the end of its scope, and how the body goes on: where all pieces share the
/// answer, with the piece's columns; else with all of it where this piece was the last. `type`: of
/// the tile.
static std::string piece_of_keys(const stitch::Group& group, const schedule::Work& work,
                                 const std::string& type) {
  const stitch::AttentionTile& a = group.attention;
  const std::string sizes =
      fmt::format("{}, g, {}, {}, {}, {}", type, a.size, a.value_size, a.keys, a.kv_splits);
  if (!work.dataflow)
    return fmt::format("    if (!OBK_ATTENTION_SPLIT({})) return;\n  }}\n", sizes);
  if (!work.dataflow->in_place_kv)
    return fmt::format("    OBK_ATTENTION_SHARE({});\n  }}\n", sizes);
  return fmt::format(
      "    g.in_place = t->weight_bytes / {};\n    OBK_ATTENTION_IN_PLACE({}, {});\n  }}\n",
      a.size * byte_size(*work.dataflow->in_place_kv, 1), sizes,
      tile_type(static_cast<int32_t>(*work.dataflow->in_place_kv)));
}

/// What the library is told of a task's tile.
static ObkAttention attention_shape(const stitch::Group& group, const schedule::Work& work) {
  const stitch::AttentionTile& a = group.attention;
  const bool masked = a.mask.value != graph::kNone;
  ObkAttention shape = {};
  shape.type = a.tile_type(), shape.queries = work.tile_rows, shape.keys = a.keys,
  shape.size = a.size, shape.value_size = a.value_size;
  shape.mask_type = masked ? (a.mask_type == DType::f32 ? 1 : 2) : 0,
  shape.kv_splits = static_cast<int32_t>(a.kv_splits),
  shape.in_place = work.dataflow && work.dataflow->in_place_kv;
  shape.softcap = static_cast<float>(a.softcap), shape.causal = a.causal;
  return shape;
}

void BodyEmitter::attention(bool begins_here) {
  traits_.tiles |= kAttentionTile;
  const stitch::AttentionTile& a = group_.attention;
  const int q = static_cast<int>(body_.operands.size());
  const bool masked = a.mask.value != graph::kNone;
  const Access* store = store_access_.at(0);
  const std::string type = tile_type(a.tile_type()), element = storage_name(a.type);
  std::string text = "  {\n";
  if (direct_) text += decode("t->r0", "    ", true);
  // Rows are the queries of a head, head after head where heads are not columns.
  text += fmt::format("    const int64_t plane = t->r0 / {0}, first = t->r0 % {0};\n",
                      param(a.queries));
  text += fmt::format("    const int64_t image = plane / {0}, head = plane % {0} + t->c0 / {1};\n",
                      param(a.packed ? 1 : a.heads), param(a.value_size));
  text += fmt::format("    const int64_t keys_of = head / {};\n", param(a.shared));
  text += fmt::format(
      "    ObkAttention g = {{}};\n    g.type = {};\n    g.queries = t->r1 - t->r0;\n", type);
  auto set = [&](std::string_view field, int64_t value) {
    text += fmt::format("    g.{} = {};\n", field, param(value));
  };
  set("keys", a.keys), set("size", a.size), set("value_size", a.value_size);
  auto at = [&](const stitch::AttentionTile::Operand& operand, std::string_view head) {
    return fmt::format("{} + image * {} + {} * {}", param(operand.offset), param(operand.image),
                       head, param(operand.head));
  };
  const std::string q_row = param(a.q.row);
  text += fmt::format("    g.q = (const {}*)x[{}] + ({} + first * {});\n    g.q_row = {};\n",
                      element, q, at(a.q, "head"), q_row, q_row);
  text += fmt::format("    g.k = (const {}*)x[{}] + ({});\n", element, q + 1, at(a.k, "keys_of"));
  text += fmt::format("    g.v = (const {}*)x[{}] + ({});\n", element, q + 2, at(a.v, "keys_of"));
  set("k_row", a.k.row), set("v_row", a.v.row);
  if (masked) {
    const bool added = a.mask_type == DType::f32;
    const std::string row = param(a.mask.row);
    text += fmt::format(
        "    g.mask_type = {};\n    g.mask = (const {}*)x[{}] + ({} + first * {});\n    "
        "g.mask_query = {};\n",
        added ? 1 : 2, storage_name(a.mask_type), q + 3, at(a.mask, "head"), row, row);
    set("mask_key", a.mask.column);
  }
  text += fmt::format("    g.scale = (float)obk::as_double({});\n",
                      param(std::bit_cast<int64_t>(a.scale)));
  if (a.softcap > 0)
    text += fmt::format("    g.softcap = (float)obk::as_double({});\n",
                        param(std::bit_cast<int64_t>(a.softcap)));
  if (a.zero_if_masked) text += "    g.zero_if_masked = 1;\n";
  if (a.causal) text += "    g.causal = 1;\n    g.causal_offset = first;\n";
  if (direct_) {
    const Step& step = body_.steps.front();
    std::string out = param(store->offset);
    for (int d = 0; d < nest_.rows; ++d)
      if (store->strides[d]) out += fmt::format(" + {} * {}", var(d), stride(*store, d));
    if (lane_ >= 0) out += " + t->c0";
    text += fmt::format("    g.y = {} + ({});\n    g.y_row = {};\n", pointer(step.slot, true), out,
                        nest_.rows > 0 ? param(store->strides[nest_.rows - 1]) : "0");
    text += "    g.scratch = (char*)w->scratch;\n";
  } else {
    const int64_t bytes = (work_.tile_rows * tile_pitch() * 4 + 63) / 64 * 64;
    top_ += "  float* __restrict tile = (float*)w->scratch;\n";
    text +=
        fmt::format("    g.y = tile;\n    g.y_row = {};\n    g.scratch = (char*)w->scratch + {};\n",
                    pitch_, param(bytes));
    scratch_ += bytes;
  }
  if (a.kv_splits > 1) {
    text += fmt::format(
        "    g.kv_split = (int)kv_split;\n    g.exchange = (char*)x[{}] + (image * {} + head) * "
        "{};\n",
        q + (masked ? 4 : 3), param(a.heads), param(a.exchange));
    top_ += fmt::format("  const int64_t kv_split = t->c0 % {} / {};\n", param(a.value_size),
                        param(a.value_size / a.kv_splits)) +
            (work_.dataflow ? ""
                            : fmt::format("  ObkTask whole = *t;\n  whole.c0 -= whole.c0 % {0}, "
                                          "whole.c1 = whole.c0 + {0}, t = &whole;\n",
                                          param(a.value_size)));
    if (work_.dataflow && work_.dataflow->cache_rows) {
      const schedule::Dataflow::NewRows& rows = *work_.dataflow->cache_rows;
      const auto row = [&](const schedule::Dataflow::NewRows::At& at) {
        return fmt::format("{} + image * {} + keys_of * {}", param(at.offset), param(at.image),
                           param(at.head));
      };
      text += fmt::format("    g.new_at = (int64_t)((const {}*)x[{}])[{}];\n",
                          storage_name(rows.index_type), rows.slot, param(rows.index_at));
      text += fmt::format("    g.new_at += g.new_at < 0 ? {} : 0;\n", param(a.keys));
      text += fmt::format("    g.new_key = (const {}*)x[{}] + ({});\n", element, rows.slot + 1,
                          row(rows.keys));
      text += fmt::format("    g.new_value = (const {}*)x[{}] + ({});\n", element, rows.slot + 2,
                          row(rows.values));
    }
    text += piece_of_keys(group_, work_, type);
  } else {
    text += fmt::format(
        "{}    OBK_ATTENTION_TILE({}, g{});\n  }}\n", begins_here ? begin() : "", type,
        tiles_.vectors
            ? fmt::format(", {}, {}, {}, {}", a.size, a.value_size, work_.tile_rows, a.keys)
            : "");
  }
  out_ += text;
  const ObkAttention shape = attention_shape(group_, work_);
  scratch_ += (tiles_.attention.scratch_bytes(&shape) + 63) / 64 * 64;
}

}  // namespace obelisk::codegen
