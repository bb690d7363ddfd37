/// schedule/schedule.h — the door of `schedule`: groups become tasks, tasks become lists, values
/// become bytes.
///
///   in   Graph, Plan, Machine, Strategy
///   out  TaskGraph: waves by longest path (MonoNN's barrier merging), tiles assigned to
///   workers, buffers with reuse
///
/// Steps: fold_domains · assign_waves · cut_tiles · assign_buffers · assign_tasks, then validate.
#pragma once

#include "passes/passes.h"
#include "schedule/dependencies.h"
#include "schedule/dispatch.h"
#include "schedule/floor.h"
#include "schedule/memory_order.h"
#include "schedule/packed_weights.h"
#include "schedule/shadow_run.h"
#include "schedule/task_graph.h"

namespace obelisk::schedule {

/// Operands of a work that is a grid, at most: they travel in its kernel's parameter.
inline constexpr int kGridOperands = obk::kGridOperands;

/// Broadcast values that a work of a dataflow program reads (schedule/dataflow.h), at
/// most: a task has a bit of each.
inline constexpr int kMostGathers = 16;

/// Workers of a gang at most: as many as every GPU runs at once.
inline constexpr int kMostOfGang = 8;

TaskGraph build(const Graph& graph, const stitch::Plan& plan, const machine::Machine& machine,
                const machine::Strategy& strategy = {});

/// Every table is checked before it runs: waves ascend in every list, each work's tiles cover its
/// domain once, whatever a work reads was written in an earlier wave, buffers that are alive
/// together do not share bytes. Errors: kBuild, naming work and buffer.
Status validate(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks);

/// The table as text: works with waves, tiles and buffers; deterministic.
std::string print(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks);

/// What a group's nodes take one by one at the machine's rates, all workers at them: what kernels
/// are ordered by.
double roof_nanos(const stitch::Group& group, const machine::Machine& machine);

/// What each work needs as a kernel of its own: the time of its tasks in rounds of all workers, and
/// no less than its roof.
std::vector<Need> kernel_needs(const stitch::Plan& plan, const TaskGraph& tasks,
                               const machine::Machine& machine);

/// Predicted nanoseconds of a GPU's task that reduces `columns` strided elements of that type for
/// each of `rows` neighbours (pixels for each channel), which threads share out.
double strided_columns_nanos(const machine::Machine& machine, DType type, int64_t rows,
                             int64_t columns);

/// In how many parts of k a GEMM of kMostPipelinedRows rows or more is computed: as many as gangs
/// compute quickest by tall tiles, all at once, its epilogue with it, where that is predicted to be
/// quicker than all of k in a tile; else 1.
int64_t tall_split_k(const machine::Machine& machine, const machine::Strategy& strategy,
                     int32_t type, int64_t rows, int64_t columns, int64_t depth);

/// Whether a GEMM of 16-bit numbers by constant weights, of kMostPipelinedRows rows or more, is
/// predicted to be quickest as a pipelined GEMM, of which each worker computes one tile. A norm
/// before it is then computed by its tiles; where workers computed several, BERT-base of batch 16
/// and 32 was slower so (h200_tall_gemm.json, norms).
bool one_round_of_tiles(DType type, int64_t rows, int64_t columns, int64_t depth,
                        const machine::Machine& machine, const machine::Strategy& strategy);

/// How many groups a grouped convolution should have if groups may be merged (block-diagonal
/// weights): its own number, unless fewer are predicted to be clearly quicker.
int64_t quickest_conv_groups(const stitch::ConvTile& conv, const machine::Machine& machine,
                             const machine::Strategy& strategy);

/// How many of a batch's products the first of two pipelined GEMMs computes, whose tiles fill all
/// workers in every round, where it and a second one for the other products are predicted to take
/// less than one for all of them; 0: they are not, or pipelined GEMMs do not compute such products.
int64_t products_in_full_rounds(const passes::BatchOfProducts& batch,
                                const machine::Machine& machine, const machine::Strategy& strategy);

/// Whether a dual GEMM, of two halves of `columns` columns each, is predicted to take no longer
/// than two GEMMs, of which the second's epilogue reads what the first has stored.
bool dual_gemm_pays(DType type, int64_t rows, int64_t columns, int64_t depth,
                    const machine::Machine& machine, const machine::Strategy& strategy);

/// The folded loops of a body, given where values live.
Nest fold_domain(const stitch::Plan& plan, const stitch::Group& group);

}  // namespace obelisk::schedule
