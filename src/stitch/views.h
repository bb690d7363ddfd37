/// stitch/views.h — the layout of every value, and which data movement is only another way to read
/// it.
///
///   in   Graph
///   out  a Layout for every value; the set of nodes that no group computes
///
/// A value that only a transpose reads is stored in the transposed order, a convolution's output
/// channels-last, and the inputs of a concatenation inside its output, even if other ops read them;
/// a concatenation of inputs that are neighbours inside of another one is a part of that.
/// A convolution reads a slice of a stored value, or tokens as an image, in place. So most data
/// movement needs no code at all. Where the halves of a product are combined again, its group
/// computes both side by side (a dual GEMM), and the split is part of it. A cast from f16 or bf16
/// to f32 is a view too, since every load computes in f32: a product of two such values is one of
/// 16-bit operands with an f32 result. form_groups adds cheap nodes that would otherwise be groups
/// of their own: a cast of which others take slices, a negated half.
///
/// Stands   first: everything after it reads values through Views.
/// Paper    AStitch treats moves as light elementwise ops of local scheme; here they become part of
/// the reader's addresses. Errors   none.    Cost  O(nodes + edges).
#pragma once

#include <map>
#include <set>
#include <vector>

#include "stitch/plan.h"

namespace obelisk::stitch {

struct Options;

class Views {
 public:
  /// `tiles`: the machine's, or null where everything goes through its loop form.
  Views(const Graph& graph, const Options& options, const kernels::TileLibrary* tiles);

  /// A view is read through; it is computed only where its bytes are needed (`stored`).
  bool is_view(NodeId node) const { return view_[node]; }
  bool needs_storage(ValueId value) const { return stored_[value]; }
  /// What stores the rows of a value (its last axis) one after the other: behind views that give
  /// them other axes, or the value itself.
  ValueId rows_behind(ValueId value) const;
  /// True when the node needs no group: a view that is not stored, or a concatenation whose
  /// operands are stored in place.
  bool is_free(NodeId node) const;
  const Layout& layout(ValueId value) const { return layouts_[value]; }
  std::vector<Layout> take_layouts() { return std::move(layouts_); }
  /// The values whose groups must have run before `value` can be read: itself, or the pieces stored
  /// inside it.
  const std::vector<ValueId>& pieces(ValueId value) const { return pieces_.at(value); }
  bool has_pieces(ValueId value) const { return pieces_.count(value) != 0; }
  /// Of the concatenations whose operands are not stored inside them: which of these could be.
  const std::map<NodeId, std::vector<bool>>& copied_concatenations() const { return copied_; }
  /// The Split into halves that a product's group computes itself (a gate and what it gates), or
  /// kNone.
  NodeId dual_gemm_of(NodeId product) const {
    auto it = dual_gemms_.find(product);
    return it == dual_gemms_.end() ? graph::kNone : it->second;
  }
  /// From here on readers compute the node's only output themselves.
  void read_through(NodeId node) { view_[node] = true; }

  /// Reads `value` at coords in `exprs`, through views, down to stored values, which `leaf` turns
  /// into expressions.
  using Leaf = std::function<ExprId(ValueId, DType, std::vector<ExprId> coords, ExprId guard,
                                    ExprId otherwise)>;
  ExprId read(ops::Exprs& exprs, ValueId value, DType dtype, std::vector<ExprId> coords,
              ExprId guard, ExprId otherwise, const Leaf& leaf) const;

  /// One stored value of the same type, read by strides.
  struct Strided {
    ValueId value = graph::kNone;
    ops::Affine at;  // in elements of the storage, by coordinate
  };
  /// What reading `value` at coordinates of a domain of `rank` comes down to; nothing where it is
  /// more than one such load.
  std::optional<Strided> strided(ops::Exprs& exprs, ValueId value, std::vector<ExprId> at,
                                 int rank) const;

  /// Whether a block can compute a SqueezeExcite where its operands lie: the maps dense, with the
  /// channels last; weights that nothing computes, for they are read before the kernel before ends.
  bool suits_block(NodeId excite) const;

  /// Where an input of a scatter that has a block can be read without a copy of it: what views lead
  /// to, if `value` is contiguous there.
  std::optional<BlockInput> contiguous_part(NodeId scatter, ValueId value) const;

  /// offset + sum of strides * coords, in elements of the value's storage.
  ExprId offset(ops::Exprs& exprs, ValueId value, const std::vector<ExprId>& coords) const;

  /// A product's or any op's loop, or nothing; computed once.
  const ops::Loop* loop(NodeId node, int output) const;

 private:
  bool leads_to_conv(ValueId value) const;                               // layouts.cpp
  bool is_excited(ValueId value) const;                                  // layouts.cpp
  bool is_read_by_strides(ValueId value) const;                          // layouts.cpp
  bool lie_side_by_side(const graph::Node& concat, int64_t axis) const;  // layouts.cpp
  void choose_orders();                                                  // layouts.cpp
  void place_concatenations();                                           // layouts.cpp
  void find_views();
  ValueId source_of(ValueId value) const;  // layouts.cpp
  void place_parts();                      // layouts.cpp
  bool widens(NodeId node) const;
  NodeId widening_behind(ValueId value) const;
  std::set<NodeId> casts_to_compute() const;
  void store_product_operands();
  void find_dual_gemms();                            // dual_gemm.cpp
  bool halves_meet(const graph::Node& split) const;  // dual_gemm.cpp

  const Graph& graph_;
  const kernels::TileLibrary* tiles_;
  std::vector<Layout> layouts_;
  std::vector<bool> view_, stored_;
  std::map<ValueId, std::vector<ValueId>> pieces_;
  std::map<NodeId, std::vector<bool>> copied_;  // concatenations
  std::map<NodeId, NodeId> dual_gemms_;         // product → its split
  std::set<NodeId> taken_splits_;
  mutable std::map<std::pair<NodeId, int>, std::optional<ops::Loop>> loops_;
};

}  // namespace obelisk::stitch
