#include "codegen/body_traits.h"

#include <fmt/format.h>

namespace obelisk::codegen {

using Form = BodyTraits::Form;
using Wait = BodyTraits::Wait;

std::string disagreement(const BodyTraits& t) {
  if ((t.ctas_per_sm > 0) != (t.form == Form::kGrid))
    return "CTAs share a multiprocessor in a grid alone";
  if ((t.cluster > 1) != (t.form == Form::kCluster))
    return "CTAs wait for one another in a cluster alone";
  if (t.gemm.has_value() != (t.form == Form::kPipelinedGemm))
    return "a pipelined GEMM is a form of its own";
  if (t.gemm && (t.gemm->a >= t.operands || t.gemm->b >= t.operands))
    return "a pipelined GEMM's operands are not the body's";
  if (t.async_rows && t.async_rows->a >= t.operands)
    return "the matrix whose rows are requested is no operand";
  if (t.async_rows && (t.form != Form::kTaskList || t.waits != Wait::kWaveBefore))
    return "rows are requested after the wave before, in one kernel";
  return "";
}

std::string to_string(const BodyTraits& t) {
  std::string text;
  switch (t.form) {
    case Form::kTaskList:
      text = "task list";
      break;
    case Form::kGrid:
      text = fmt::format("grid of {} CTAs an SM", t.ctas_per_sm);
      break;
    case Form::kPipelinedGemm:
      text = "pipelined GEMM";
      break;
    case Form::kCluster:
      text = fmt::format("cluster of {} CTAs", t.cluster);
      break;
  }
  if (t.waits != Wait::kNothing)
    text += t.waits == Wait::kKernelBefore ? ", waits for the kernel before"
                                           : ", waits for the wave before";
  constexpr std::pair<Tile, const char*> kNames[] = {
      {kGemmTile, "gemm"},           {kAnyGemmTile, "any gemm"},    {kConvTile, "conv"},
      {kDepthwiseTile, "depthwise"}, {kAttentionTile, "attention"}, {kGangBlock, "gang"}};
  for (const auto& [tile, name] : kNames)
    if (t.calls(tile)) text += fmt::format(", {} tile", name);
  text += fmt::format("; {} operands, {} params", t.operands, t.params);
  const auto matrix = [](int64_t a, int64_t rows, int64_t pitch) {
    return fmt::format("; A is operand {}, {} rows {} apart", a, rows, pitch);
  };
  if (t.gemm)
    text += matrix(t.gemm->a, t.gemm->rows, t.gemm->pitch) +
            fmt::format(", {} blocks of k in stages of {}, tiles of {} columns, split_k {}",
                        t.gemm->blocks, t.gemm->stage, t.gemm->columns, t.gemm->split_k);
  if (t.gemm && t.gemm->boxes)
    text += fmt::format("; B has {} rows {} apart, {}", t.gemm->boxes->rows, t.gemm->boxes->pitch,
                        t.gemm->boxes->k_rows ? "of k" : "of columns");
  if (t.async_rows)
    text += matrix(t.async_rows->a, t.async_rows->rows, t.async_rows->pitch) +
            fmt::format(", copies of {} rows by {} blocks of k", t.async_rows->box,
                        t.async_rows->blocks);
  return text;
}

Hash identity(const std::string& text, const BodyTraits& traits) {
  std::string all = text;
  visit_numbers(traits, [&](const char*, const auto& number, int64_t, int64_t) {
    all += fmt::format("\n{}", static_cast<int64_t>(number));
  });
  return hash_text(all);
}

}  // namespace obelisk::codegen
