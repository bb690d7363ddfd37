/// stitch/stitch.h — the door of `stitch`: which ops share a body, and through which memory their
/// values go (AStitch, ASPLOS'22).
///
///   in   Graph after `passes`, Machine, Strategy
///   out  Plan: groups in order, each with one body; a layout for every value; a scheme for every
///   edge
///
/// Steps, in order: choose_layouts (where values live) · inline_views (moves that cost nothing) ·
/// form_groups (scopes, dominants, schemes) · order_domains (thread mapping) · write_bodies (steps,
/// staging, shared memory).
#pragma once

#include "stitch/plan.h"

namespace obelisk::stitch {

struct Options {
  bool stitch = true;        // false: every op is a group of its own (the granularity `op`)
  bool tiles = true;         // false: products and convolutions go through their loop form
  bool adapt = true;         // false: readers behind a reshape begin a group of their own (adapt.h)
  bool gangs = true;         // of GPUs: recurrent steps by gangs of workers that run at once and
                             // exchange their state; false: unrolled
  bool own_kernels = false;  // of GPUs: a group is a kernel, with gangs of its own
  int max_operands = 24;     // of one body
};

Plan plan(const Graph& graph, const machine::Machine& machine,
          const machine::Strategy& strategy = {}, const Options& options = {});

/// Whether a tile of the machine computes this Attention node, or a block this Recurrence or
/// SqueezeExcite; one that none computes is better decomposed into simpler ops before plan().
/// `why`: gets the reason where it is false.
bool takes_whole(const Graph& graph, NodeId node, const machine::Machine& device,
                 const Options& options = {}, std::string* why = nullptr);

/// By value: whether plan() would store it with its channels last, [N, spatial..., C] for a shape
/// [N, C, spatial...], as convolutions' tiles read and write it.
std::vector<bool> stored_channels_last(const Graph& graph, const machine::Machine& machine,
                                       const Options& options = {});

/// Of the concatenations whose operands would not be stored inside them: which of these could be,
/// if the others were copied there.
std::map<graph::NodeId, std::vector<bool>> placeable_pieces(const graph::Graph& graph,
                                                            const machine::Machine& machine,
                                                            const Options& options);

/// The tile that computes this convolution; none where the machine has no such tiles.
std::optional<ConvTile> conv_tile(const Graph& graph, NodeId node, const machine::Machine& machine,
                                  const machine::Strategy& strategy = {});

/// What the machine gives to blocks for gangs.
ops::Gangs gangs_of(const machine::Machine& device, const Options& options);

/// Invariants: every node is in one group or is a view; groups are in a topological order; what a
/// body reads is stored before.
Status verify(const Graph& graph, const Plan& plan);

/// The plan as text, deterministic: groups, bodies, layouts. `edges`: also each edge's scheme and
/// why (--explain=stitch).
std::string print(const Graph& graph, const Plan& plan, bool edges = false);

}  // namespace obelisk::stitch
