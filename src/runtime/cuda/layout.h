/// runtime/cuda/layout.h — what lies where in a CTA's shared memory: pages of weights, a task's
/// scratch, its block, then what a program without barriers keeps.
///
///   a work's needs (Shape)  ──▶  lay_out  ──▶  places in a Launch
#pragma once

#include "runtime/cuda/tables.h"

namespace obelisk::runtime::cuda {

inline constexpr int64_t kAlign = 128;
inline int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// A work's shared memory beside the ring: its tile, staged rows of as many groups as fit, then the
/// block.
struct Shape {
  int64_t tile = 0, row = 0, words = 0;
  int groups = 1;
  bool streams = false;  // its tasks name weights that the page ring loads
  int64_t scratch() const { return aligned(tile + groups * row); }
  int64_t bytes() const { return scratch() + 2 * aligned(words * 8); }
};

/// `mapped`: the address of a map stands behind its operands.
Result<Shape> shape_of(const WorkRecord& work, bool mapped, int64_t room);

inline constexpr int64_t kLine = 128;  // bytes
/// Of a dataflow program, by a work's operand: the lines of a small weight, which its body reads
/// of its own accord, as a norm's scale; 0 of another operand, and where those before it fill the
/// place of a task.
std::vector<int64_t> small_weights(const Program& program, const WorkRecord& work);

/// The layout of a kernel that runs these works: pages first, then as many groups of lanes as there
/// is room for.
/// `flowing`: the program, where it flows; `soon`: bytes of the small weights of a task.
Launch lay_out(std::vector<Shape*> shapes, int64_t room, bool has_ring, int blocks,
               const Program* dataflow = nullptr, int64_t soon = 0);

/// CTAs of a kernel begin where the one before it has ended first, as many as an SM holds. Where it
/// has a task for each SM at most, a CTA takes so much shared memory that the next one waits for an
/// SM of its own. Not beside other kernels, whose SMs it may share; and not where tasks are short:
/// then it is better to leave SMs for the kernel after it, whose weights are on their way before it
/// may begin.
void spread_out(std::vector<Launch>& launches, const Program& program, int64_t room);

}  // namespace obelisk::runtime::cuda
