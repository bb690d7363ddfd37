/// machine/costs_cuda.h — every number of the cost models that is of a GPU, with its unit and the
/// key of the measurement behind it: a file under bench/results and a name in it. What was fitted
/// was fitted to an H200 (sm_90a) and stands for all GPUs. A unit that is not named is nanoseconds.
///
/// "Not measured: estimate" is said where no record is kept; "fit" where the record has the
/// measurements and the number is what made the formula meet them.
#pragma once

#include "machine/costs.h"

namespace obelisk::machine::cuda_costs {

// ---- rates of an architecture ------------------------------------------------------------------

/// Of a multiprocessor. `flops` is what tiles and bodies reach together, not a peak.
struct Rates {
  double barrier;  // ns, a grid barrier of all
  double flops;    // a ns
  double bytes;    // a ns, streaming from memory
  Peaks peaks;     // data sheets: operations a clock times the highest clock
};

/// Bytes a clock that a multiprocessor takes from the second-level cache at most. Data sheets.
inline constexpr double kCacheBytesPerClock = 128;

constexpr Peaks peaks(double ghz, double tensor_16, double tensor_tf32, double f32, double f64,
                      double memory_bytes, double cache_capacity) {
  return {.tensor_16 = ghz * tensor_16,
          .tensor_tf32 = ghz * tensor_tf32,
          .f32 = ghz * f32,
          .f64 = ghz * f64,
          .cache_bytes = ghz * kCacheBytesPerClock,
          .memory_bytes = memory_bytes,
          .cache_capacity = cache_capacity};
}

// bytes: h200_gemm_tiles.json, us_weights_at_4.67_TB_s; barrier: not on record, 0.95 us of 132
// CTAs; flops: not measured: estimate. Peaks of an H200.
inline constexpr Rates kSm90 = {950, 400, 35, peaks(1.98, 4096, 2048, 256, 256, 36.4, 63e6)};
// Not measured: estimates from data sheets (A100, A10 and RTX 3090, Orin, L40S and RTX 4090, B200,
// B300, Thor, RTX 5090, GB10).
inline constexpr Rates kSm80 = {1200, 250, 14, peaks(1.41, 2048, 1024, 128, 128, 18.9, 42e6)};
inline constexpr Rates kSm86 = {1200, 180, 7, peaks(1.9, 1024, 512, 256, 4, 11.2, 6.3e6)};
inline constexpr Rates kSm87 = {1200, 150, 12, peaks(1.3, 2048, 1024, 256, 4, 12.8, 4.2e6)};
inline constexpr Rates kSm89 = {1200, 350, 6, peaks(2.6, 1024, 512, 256, 4, 7.9, 101e6)};
inline constexpr Rates kSm100 = {1200, 400, 50, peaks(2.0, 8192, 4096, 256, 256, 54.1, 133e6)};
inline constexpr Rates kSm103 = {1200, 400, 50, peaks(2.0, 8192, 4096, 256, 256, 54.1, 133e6)};
inline constexpr Rates kSm110 = {1200, 400, 13, peaks(1.7, 8192, 4096, 256, 256, 13.7, 34e6)};
inline constexpr Rates kSm120 = {1200, 350, 10, peaks(2.6, 1024, 512, 256, 4, 10.6, 134e6)};
inline constexpr Rates kSm121 = {1200, 350, 5, peaks(2.6, 1024, 512, 256, 4, 5.7, 26e6)};

inline constexpr double kSmallestTaskNanos = 60;  // not measured: estimate

/// Of the multiprocessors, the share that whole clusters of 3 and more CTAs find room on:
/// h200_multicast.json, clusters_at_once.
inline constexpr double kClusterShare = 0.89;

// ---- schedule and fit --------------------------------------------------------------------------

inline constexpr Costs kCosts = {
    .task = 700,                // not measured: estimate
    .phase = 2500,              // h200_networks.json, exposed_us_per_phase, bert_b1
    .pipelined_begin = 1600,    // not on record: fit
    .grid_begin = 1700,         // not on record: fit to ResNet-50 of batch 8
    .split_k_exchange = 2000,   // h200_tall_gemm.json, erf, 128 x 96 of k = 3072: fit
    .gemm_task = 300,           // not measured: estimate
    .graph_node = 1600,         // gpu_dispatch.json, dispatch: fit to towers_b1
    .graph_edge = 12,           // gpu_dispatch.json, dispatch: fit to towers_b1
    .loop_over_roof = 3,        // not on record: fit
    .reduction_over_roof = 10,  // not on record: fit
    .alone_over_tile = 1.25,    // not on record: fit to ResNet-50 of batch 8
    .block_over_roof = 16,      // not measured: estimate
    .cache_over_memory = 4,     // not measured: estimate
    .batch_begin = 700,         // not on record: fit to a 3x3 pooling, 3.5 us
    .batch_column = 330,        // the same
    .batch_slice = 58,          // h200_predictions.json, global_means: fit
    .grid_task_bytes = 25e3,    // h200_memory.json, dealt: fit
    // Not on record: fit; register_read_again: what one SM gets from the second-level cache.
    .recurrence = {.begin = 2000,
                   .step = 250,
                   .exchange_step = 700,
                   .register_16 = 0.25,
                   .register_32 = 0.5625,
                   .register_read_again = 10,
                   .most_registers = 1024},
    // h200_predictions.json, efficientnet_b0_blocks: 70 us predicted, 68 measured;
    // h200_unseen_networks.json: 2.1 us a kernel without blocks.
    .excite = {.begin = 3200, .vector = 110, .weight = 0.5, .apart = 2000},
};

/// A phase beside its tasks, as a share of a grid barrier: a node of a graph whose kernels overlap
/// is no cheaper than the barrier and its CTAs begin cold; one that follows the end of the one
/// before costs half as much again. h200_networks.json, exposed_us_per_phase: fit.
inline constexpr double kMonoPhaseShare = 1.0, kStitchPhaseShare = 1.2, kOpPhaseShare = 1.5;
/// Where the machine is not known.
inline constexpr double kAnyBarrierNanos = 1000;

/// Predicted nanoseconds of a task below which a kernel's CTAs leave room for the next kernel's:
/// with 90 BERT-base's norms cost the next kernel as much as they gain, with 180 less. Not on
/// record.
inline constexpr double kShortTaskNanos = 150;

// ---- GEMM tiles --------------------------------------------------------------------------------

/// A tile whose shape is constant (gemm_fixed.cuh), 16 bits: h200_gemm_tiles.json, phases: fit.
struct GemmTile {
  static constexpr double kBegin = 600;
  // Rows of A, which many SMs share, and weights: ns a KB; those beyond what finds place in the
  // ring before the barrier (96 KB) cost more.
  static constexpr double kAPerKb = 2, kAPastPerKb = 8, kBPerKb = 12.6, kBPastPerKb = 3;
  static constexpr double kAheadKb = 96;
  static constexpr double kPasses = 3.0;        // times as slow where a tile goes over k in passes
  static constexpr double kSharedBytes = 128;   // a clock that warps read of shared memory
  static constexpr double kClock = 1.98;        // GHz
  static constexpr double kWgmmaColumns = 1.9;  // columns a ns, twice
  static constexpr double kOut = 0.35;          // ns an element: the sums' way out
};

/// A 16-bit product of two activations (gemm_activations.cuh): what a pass begins and ends with; a
/// block of 64 k, at least, and its products. Of 64 x 64 by 256 and by 1,152, of 32 x 64 and of one
/// row: h200_super_kernels.json.
struct GemmActivations {
  static constexpr double kBegin = 3000, kBlock = 330;  // ns
  static constexpr double kFlops = 820;                 // a ns
};

/// f32 operands in stages (f32_stages.cuh): a pass's beginning and end, operands from the
/// second-level cache, fragments from shared memory, and products by tf32. Of the same shapes:
/// h200_super_kernels.json.
struct GemmF32 {
  static constexpr double kBegin = 3300;                                      // ns
  static constexpr double kBytes = 50, kSharedBytes = 165, kTf32Flops = 355;  // a ns
};

/// f64 and int8 on CUDA cores. Not on record: fit.
struct GemmFma {
  static constexpr double kBegin = 1500;
  static constexpr double kBytes = 50;                     // a ns
  static constexpr double kFlops32 = 300, kFlops64 = 150;  // a ns
};

/// f32 of few rows (fma_few_rows.cuh). Not measured: estimates. A's way to shared memory and the
/// first weights', one latency of memory each; the sums of a round; weights at the rate of memory;
/// multiply-adds at two thirds of what the CUDA cores have.
struct GemmFmaFewRows {
  static constexpr double kBegin = 900, kRound = 250;  // ns
  static constexpr double kBytes = 35, kFlops = 300;   // a ns
};

/// f32 of 9 to 64 rows (fma_rows.cuh). Estimates: an H100 takes about 1.8 times as long, and 2.4
/// times for the tiles that these are compared with (h100_fp32_rows.json). The first operands' way
/// to shared memory and the epilogue; the sums of a round; operands at what an SM has of the
/// second-level cache while all load; multiply-adds at two thirds of what the CUDA cores have.
struct GemmFmaRows {
  static constexpr double kBegin = 1200, kRound = 200;  // ns
  static constexpr double kBytes = 45, kFlops = 300;    // a ns
};

/// Few rows by an activation that streams (gemm_streamed.cuh). Chosen, and not fit to what such
/// kernels take since (h200_super_kernels.json, "vector"): a latency of memory, and the sums' way
/// out; B at the rate of memory; multiply-adds of f32 at two thirds of what the CUDA cores have.
struct GemmStreamed {
  static constexpr double kBegin = 900;               // ns
  static constexpr double kBytes = 35, kFlops = 300;  // a ns
};

/// A pipelined GEMM's tile (pipelined_gemm.cuh). Of two activations the same numbers, those of tall
/// tiles of many rows where a worker has several in turn, and then what it takes from a tile to the
/// next: fit to batches, h200_super_kernels.json, parts_of_k.
struct GemmPipelined {
  static constexpr double kBytes =
      90;  // a ns from the second-level cache: h200_multicast.json, again
  // The same where a CTA has one tile and all CTAs of a GPC few of the weights: fit to products of
  // 512 to 1024 rows and k of 1024 to 4096, h200_tuned_tiles.json, of_many_rows.
  static constexpr double kBytesOfMany = 125;
  static constexpr double kFlops =
      2700;  // multiply-adds a ns: three quarters of the peak; estimate
  // The same of a tall tile, whose warpgroups share what a stage has of B; its beginning and end;
  // and its epilogue, a column: h100_tall_gemm.json, shapes, of 1024 and 2048 rows, times what
  // grids of the same shapes are predicted to take over what they took. With four chains:
  // estimates.
  static constexpr double kTallFlops = 4400, kTallBegin = 200, kTallColumn = 10;
  // Of fewer than 512 rows, not bound by the second-level cache: fit to tiles of 48 to 192 columns
  // and k = 768 on 16 SMs, h200_tall_gemm.json, phases.
  static constexpr double kTallFlopsOfFew = 3000, kTallBeginOfFew = 1500;
  static constexpr double kTallFlopsOfFour = 3000, kTallBeginOfFour = 700, kTallColumnOfFour = 16;
  static constexpr double kBegin = 500, kColumn = 8;  // the epilogue; not on record: fit
  static constexpr double kNextOfActivations = 1000;
};

/// The same of tf32 (pipelined_gemm_tf32.cuh): bytes that a multiprocessor gets of the second-level
/// cache where all read. Of each k, ns, and multiply-adds at most (six tenths of the peak, chosen);
/// where warpgroups have columns of their own and a stage is one block, ns and the multiply-adds
/// beside them. Fit to products of 49 to 1,024 rows and to batches, h200_fp32_gemm.json,
/// parts_of_k; what those that share out k take from a tile to the next: not measured.
struct GemmPipelinedTf32 {
  static constexpr double kBytes = 50;                                     // a ns
  static constexpr double kStep = 6.6, kFlops = 1000;                      // ns; a ns
  static constexpr double kStepOfShort = 14, kFlopsOfShort = 1100;         // ns; a ns
  static constexpr double kBegin = 1000, kBeginInTurn = 200, kOut = 0.11;  // ns, an element of C
};

/// The same of exact f32 (pipelined_gemm_f32.cuh): for each k and each warp that has it, four sums
/// of a row, a row's number of A, a four of B's, one behind the other; and a part of what a stage
/// takes. Fit to tiles on an H200, h200_fp32_gemm.json; where warps share out k they take longer,
/// and so does the way from a tile to the next.
struct GemmPipelinedF32 {
  static constexpr double kBytes = 90;                                             // a ns
  static constexpr double kSums = 0.737, kRow = 0.0975, kFour = 1.26, kOfK = 1.5;  // ns
  static constexpr double kParts = 1.05;
  static constexpr double kBegin = 1200, kBeginInTurn = 300, kBeginPartsInTurn = 1900;  // ns
  static constexpr double kOut = 0.11;  // ns, an element of C
};

/// Parts of k of both, by the CTAs of a cluster, which exchange their sums, and where it has
/// several tiles wait for each other before the next: fit to the same.
struct GemmPartsOfWords {
  static constexpr double kBegin = 600, kNext = 1000, kBytes = 25;  // ns; bytes of sums a ns
};

// ---- attention tiles ---------------------------------------------------------------------------

/// Keys that fit in shared memory (attention_short.cuh): tasks of 16 to 128 rows with 128 and 197
/// keys of 32 and 64. Not on record: fit.
struct AttentionShort {
  static constexpr double kBegin = 1000, kKey = 2.8, kOwnKey = 14.0, kRow = 3.7;
  static constexpr double kWidth = 128;  // of a key and a value, that these are for
};
/// Longer ones (attention_long.cuh). Not on record: fit.
struct AttentionLong {
  static constexpr double kBegin = 900, kPass = 100, kStep = 400;
};
/// Blocks of keys in chains (attention_mma.cuh, _tf32, _fma): h200_attention.json, tiles: fit.
struct AttentionChains {
  static constexpr double kBegin = 900, kJoin = 150, kJoinRound = 180.0;
  static constexpr double kBlock32 = 800, kBlockTf32 = 300, kBlock16 = 200;  // a block of keys
  static constexpr double kWide32 = 17, kWideTf32 = 8, kWide16 = 3.3;        // a column of it
  static constexpr double kTwoHalves = 2.1;  // of more than 64 rows, beside a half
};
/// Multiprocessors whose phase pieces of keys fill. The order of sums follows from it, so it is
/// one number for all GPUs.
inline constexpr int kAttentionMultiprocessors = 132;

// ---- convolution tiles -------------------------------------------------------------------------

/// Depthwise, on CUDA cores, ns: an element of Y; a tap of it where pixels share weights
/// (depthwise_side), and elsewhere, where each tap waits for its loads. Fewer elements take as long
/// as kFewest. `h100_depthwise.json`.
struct ConvDepthwise {
  static constexpr double kItem = 0.6, kTap = 0.028, kTapAlone = 0.11, kFewest = 3072;
  // kTap is of 16 bytes at once; these of 4 channels in 16 bits, of 2 and of 1. Not measured:
  // estimates, kTap times the instructions of a tap of an element over those of packs of 8.
  static constexpr double kTapOfFour = 0.033, kTapOfTwo = 0.047, kTapOfOne = 0.075;
  // Of windows of 7 x 7, whose rows are requested one at a time: `h200_depthwise.json`, in_nasnet.
  static constexpr double kTapOfSeven = 0.058;
};
/// The same where inputs lie in shared memory (conv_depthwise.cuh), ns. Estimates, beside which
/// h100_depthwise.json has what windows 3 and 5 wide took.
/// The patch at what an SM has of the second-level cache while all load; a tap of an element at
/// two instructions, 1.4 times as many as issue slots; an element of Y; a task; and latency: of
/// memory twice, of a row of the window from shared memory.
struct ConvDepthwiseStrips {
  static constexpr double kBytes = 40, kTap = 0.013, kTapOfTwo = 0.017, kItem = 0.1, kTask = 150;
  static constexpr double kLatency = 1500, kLatencyOfTap = 8;
};
inline constexpr double kConvTask = 500;  // a task's beginning and end; not measured: estimate
/// Grids whose CTAs share multiprocessors (conv_grid.cuh): ResNet-50 of batch 8 by eight tiles.
/// Not on record: fit.
struct ConvGrid {
  static constexpr double kFirstLayerBlock = 250,
                          kFirstLayerOut = 0.11;  // ns a block of 64 k, an element
  // A block of 64 k of a shared multiprocessor: fixed, each 64 pixels, each 64 channels; Y.
  static constexpr double kBlock = 140, kHigh = 40, kWide = 40, kOut = 450;
  // 64 pixels of a block, for each copy more that 16 bytes take where pixels begin at 8 or 4. Not
  // measured: estimate, 512 copies at 24 a ns.
  static constexpr double kShortCopies = 21;
  // Of one that a CTA has alone; pixels whose taps may lie outside of X.
  static constexpr double kAloneBlock = 60, kAloneHigh = 100, kAloneHighTaps = 135, kAloneOut = 675;
};
/// Tiles of bodies that are part of their kernel (conv_wgmma, conv_first, conv_wgmma_pipelined).
/// Not on record: fit.
struct ConvInlined {
  static constexpr double kBegin = 1300, kPatchBytes = 100.0;  // ns, bytes a ns
  static constexpr double kWgmmaColumn = 1.6, kWgmmaBlock = 110.0, kWgmmaOut = 0.12;
  static constexpr double kFirstBlock = 200, kFirstOut = 0.08;
  static constexpr double kPipelinedBegin = 1800, kPipelinedColumn = 2.2, kPipelinedBlock = 300.0;
};
/// On CUDA cores and by tf32. Not on record: fit.
struct ConvFma {
  static constexpr double kBegin = 350, kMemoryBytes = 90, kCacheBytes = 240, kFlops = 350;
  static constexpr double kSingles = 25;  // elements a ns that are gathered one by one
  static constexpr double kOut = 0.06;
};
/// By mma.sync (conv_mma.cuh), tiles in a chain of phases: h200_conv.json, constants and general:
/// fit.
struct ConvMma {
  static constexpr double kFragments = 1.4, kProducts = 3.2, kClock = 1.9;  // clocks; GHz
  static constexpr double kPageBytes = 192.0, kPage = 60;                   // groups of columns; ns
  static constexpr double kPatch = 500, kPatchBytes = 110.0;                // ns; bytes a ns
  static constexpr double kStaged = 700, kStagedThin = 900, kStagedBlock = 300;
  static constexpr double kWeightBytes = 80.0,
                          kLoadedAhead = 1200;         // bytes a ns; ns ahead of the patch
  static constexpr double kWhole = 400, kPass = 1600;  // a tile of constant shape; others
  static constexpr double kOut = 0.45;                 // ns an element
};

}  // namespace obelisk::machine::cuda_costs
