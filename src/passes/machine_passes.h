/// passes/machine_passes.h — the passes that fit a graph to one machine and strategy: a table
/// beside passes::table, run when both are known.
#pragma once

#include <functional>
#include <vector>

#include "passes/copy_ready_pieces.h"
#include "passes/expand_for_machine.h"
#include "passes/fold_channel_moves.h"
#include "passes/fold_norms.h"
#include "passes/hoist_halves.h"
#include "passes/hoist_maps.h"
#include "passes/merge_conv_groups.h"
#include "passes/merge_rotary_norms.h"
#include "passes/pad_channels.h"
#include "passes/patch_products.h"
#include "passes/raise_squeeze_excite.h"
#include "passes/sink_concatenations.h"
#include "passes/split_batches.h"
#include "passes/split_products.h"
#include "passes/split_reductions.h"
#include "passes/unflatten_gemm.h"

namespace obelisk::passes {

struct Pass;

/// What these passes ask of the machine's tiles. A pass whose question is absent has nothing to do:
/// the machine has no such tiles, or the strategy wants none.
struct OfTiles {
  bool has_excite_blocks = false;  // raise_squeeze_excite
  bool has_epilogues = false;      // unflatten_gemm, hoist_maps, merge_rotary_norms,
                                   // sink_concatenations, fold_channel_moves
  DualGemmPays dual_gemm_pays;     // hoist_halves
  KeepWhole takes_whole;           // expand_for_machine: of attention, recurrences and blocks
  OfProduct gives_statistics;      // fold_norms
  OfProduct in_planes;             // fold_norms
  WantedProduct streams_patches;   // patch_products
  ConvGroups conv_groups;          // merge_conv_groups
  WantedChannels wanted_channels;  // pad_channels
  ReductionParts reduction_parts;  // split_reductions
  ChannelsLast channels_last;      // split_reductions
  SplitK split_k;                  // split_products
  StaysWhole product_stays_whole;  // split_products
  FirstOfBatch first_of_batch;     // split_batches
  bool batch_invariant = false;    // merge_rotary_norms, split_products
  Placeable placeable;             // copy_ready_pieces
};

/// In order. Every one of them may be left out.
std::vector<Pass> machine_passes(const OfTiles& tiles = {});

}  // namespace obelisk::passes
