/// stitch/fold_prologues.h — a norm before a product is recomputed by every tile that reads it, instead of once in a wave of its own.
///
///   x ── norm ── v ──┬── product        before: norm | product, residual later      two waves
///                    └── residual       after:  norm for the residual beside (norm of its own rows, product)      one wave
///
/// A product's tile reads whole rows of A anyway. Where A is what a stitched group computes row by row, the tile computes those rows
/// itself into shared memory (the group's prologue) and no longer depends on the group. The producer stays where others read its value,
/// and is removed where nobody does.
///
/// Stands   after write_bodies; before schedule, which sees fewer dependences and so fewer waves.
/// Paper    the hierarchical reuse of AStitch §4.2 across a product, which AStitch leaves alone; MonoNN's barrier merging §4.4 by recomputation.
/// Errors   none: what does not fit stays as it is, with the reason in the edge.
#pragma once

#include "stitch/plan.h"

namespace obelisk::stitch {

void fold_prologues(const Graph& graph, const kernels::TileLibrary& tiles, const target::DeviceSpec& device, Plan& plan);

}  // namespace obelisk::stitch
