#include "codegen/row_statistics.h"

#include "codegen/scalars.h"

namespace obelisk::codegen {

std::string statistics_fields(const stitch::Group& group, const schedule::Work& work) {
  const stitch::Product::Statistics& wanted = group.product.statistics;
  if (!wanted.wanted) return "";
  std::string text = fmt::format("    g.statistics = statistics, g.epsilon = {}, g.centred = {};\n",
                                 real_literal(DType::f32, wanted.epsilon), wanted.centred ? 1 : 0);
  if (wanted.of_partials)
    text += fmt::format("    g.partials = (const float*)x[{}] + t->r0 * {};\n",
                        work.read_partials(group),
                        group.product.k[0].extent / stitch::kPartialColumns * 2);
  return text;
}

std::string statistics_found(const stitch::Group& group, const schedule::Work& work,
                             const std::string& type) {
  const std::string fields = statistics_fields(group, work);
  return fields.empty() ? "" : fields + fmt::format("    OBK_FIND_STATISTICS({}, g);\n", type);
}

int64_t keep_row_statistics(const stitch::Group& group, const schedule::Work& work, int64_t at,
                            std::string& top) {
  if (!group.product.statistics.wanted) return 0;
  top += fmt::format("  float* __restrict statistics = (float*)((char*)w->scratch + {});\n", at);
  return (work.tile_rows * 8 + 63) / 64 * 64;
}

std::string leave_partials(const stitch::Group& group, const schedule::Work& work,
                           const std::function<std::string(int operand)>& pointer) {
  std::string text;
  for (const stitch::Step& step : group.body.steps)
    if (step.kind == stitch::StepKind::kStore && group.body.operands[step.slot] == group.partials)
      text += fmt::format("  obk::leave_partials({}, partials, t, {});\n", pointer(step.slot),
                          work.nest.column_count());
  return text;
}

}  // namespace obelisk::codegen
