#include "machine/machine.h"

namespace obelisk::machine {

std::string_view to_string(Granularity granularity) {
  constexpr std::string_view kNames[] = {"", "op", "stitch", "mono"};
  return kNames[static_cast<size_t>(granularity)];
}

std::optional<Granularity> parse_granularity(std::string_view name) {
  for (const Granularity each : {Granularity::kOp, Granularity::kStitch, Granularity::kMono})
    if (name == to_string(each)) return each;
  return std::nullopt;
}

Strategy strategy_for(const Machine& machine, const Wishes& wishes) {
  Strategy strategy{.batch_invariant = wishes.batch_invariant,
                    .tall_gemm = wishes.tall_gemm,
                    .gemm_tile = wishes.gemm_tile,
                    .tf32 = wishes.tf32};
  if (machine.family != Family::kCuda) return strategy;
  strategy.granularity = wishes.granularity;
  strategy.own_kernels = !strategy.one_kernel();
  if (strategy.one_kernel()) strategy.placement = wishes.placement;
  // More than all multiprocessors hold at once is long enough to be handed out while it runs.
  if (strategy.own_kernels) strategy.min_grid_bytes = {machine.scratchpad.count * machine.sms};
  // Quicker at few rows: h200_networks.json, llama1b_decode.
  // Without barriers works overlap, so those that run one after another have barriers.
  if (strategy.one_kernel() && wishes.dataflow && wishes.placement != Placement::kSequential &&
      takes_async_mma(machine, strategy))
    strategy.sync = Sync::kDataflow;
  return strategy;
}

}  // namespace obelisk::machine
