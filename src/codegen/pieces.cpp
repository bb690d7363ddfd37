#include "codegen/pieces.h"

#include <fmt/format.h>

#include "codegen/scalars.h"

namespace obelisk::codegen {

std::string piece_of_keys(const stitch::Group& group, const schedule::Work& work,
                          const std::string& type) {
  const stitch::AttentionTile& a = group.attention;
  const std::string sizes =
      fmt::format("{}, g, {}, {}, {}, {}", type, a.size, a.value_size, a.keys, a.pieces);
  if (!work.dataflow)
    return fmt::format("    if (!OBK_ATTENTION_PIECE({})) return;\n  }}\n", sizes);
  if (!work.dataflow->in_place_kv)
    return fmt::format("    OBK_ATTENTION_SHARE({});\n  }}\n", sizes);
  return fmt::format("    g.kept = t->weight_bytes / {};\n    OBK_ATTENTION_KEPT({}, {});\n  }}\n",
                     a.size * byte_size(*work.dataflow->in_place_kv, 1), sizes,
                     tile_type(static_cast<int32_t>(*work.dataflow->in_place_kv)));
}

}  // namespace obelisk::codegen
