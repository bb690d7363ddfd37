/// stitch/former.h — what forms groups; form_groups.h says what that is. Each of the files that a
/// heading names decides one thing and defines what stands below it.
#pragma once

#include "stitch/form_groups.h"

namespace obelisk::stitch {

using ops::Exprs;
using ops::Kind;
using ops::Loop;
using ops::Scalar;

/// A load that a node's loop makes of a stored or member value, with coordinates over the loop's
/// own domain.
struct Read {
  ValueId value;
  std::vector<ExprId> at;
};

class Former {
 public:
  Former(const Graph& graph, Views& views, const machine::Machine& device,
         const machine::Strategy& strategy, const Options& options,
         const kernels::TileLibrary* tiles, const Demoted& demoted);

  Grouping run();

 private:
  // ---- form_groups.cpp: order, and what all of the others use
  void place(NodeId n);
  void read_from(Draft& draft, ValueId value);
  void note_after(Draft& draft, ValueId value);
  std::vector<int> groups_behind(ValueId value) const;
  bool writes_piece_of(int group, ValueId value) const;
  int operand(Draft& draft, ValueId value);
  bool reaches(int from, int target) const;
  int64_t pieces_of_call() const;
  void place_call(NodeId n);
  void add(Draft draft, NodeId n);
  void explain(ValueId value, NodeId to, Scheme scheme, std::string why);
  void keep(Edge edge);
  void sort();
  NodeId kind_of(ValueId value) const { return graph_.value(value).producer; }
  bool is_reduction(NodeId n) const {
    const Loop* form = views_.loop(n, 0);
    return form && form->combine != Combine::kNone;
  }
  static int64_t rows_of(const Draft& draft) {
    int64_t rows = 1;
    for (size_t d = 0; d < draft.is_column.size(); ++d)
      if (!draft.is_column[d]) rows *= draft.group.body.domain[d];
    return rows;
  }

  // ---- place_anchor.cpp
  bool place_tile(NodeId n, bool loops);
  void place_anchor(NodeId n, Draft draft, int column, const std::vector<ValueId>& reads);

  // ---- place_statistics.cpp
  bool leaves_partials(ValueId rows, const Product& reader);
  void place_statistics(NodeId n);

  // ---- join_groups.cpp
  void deepest_first(std::vector<int>& candidates) const;
  void place_loop(NodeId n, int output);
  void collect(NodeId n, const Loop& form, Exprs& scratch, std::vector<Read>& reads);
  bool join(NodeId n, int output, const Loop& form, const Exprs& scratch,
            const std::vector<Read>& reads, int target, bool adapted, std::string& why);
  bool may_join(const Loop& form, const std::vector<Read>& reads, int target,
                std::string& why) const;
  bool join_adapted(NodeId n, int output, const Loop& form, const Exprs& scratch,
                    const std::vector<Read>& reads, int target, std::string& why);
  bool join_wider(NodeId n, int output, const Loop& form, const Exprs& scratch,
                  const std::vector<Read>& reads, int target, std::string& why);
  bool join_as_it_is(NodeId n, int output, const Loop& form, const Exprs& scratch,
                     const std::vector<Read>& reads, int target, std::string& why);

  // ---- enter_group.cpp
  bool enter(NodeId n, int output, const Loop& form, const std::vector<ExprId>& coords, int target,
             bool per_row, std::string& why, bool adapted = false);
  bool is_column_coord(const Draft& draft, ExprId id) const;
  bool same_rows(const Draft& draft, const Member& member, const std::vector<ExprId>& at) const;

  // ---- write_in_place.cpp
  void write_in_place();
  std::string write_in_place(int output, ValueId old, int& target);

  // ---- leave_to_readers.cpp
  bool can_be_left(NodeId n, const Loop& form, const std::vector<Read>& reads) const;
  bool left_to_reduction(NodeId n, const Loop& form, const std::vector<Read>& reads,
                         const std::vector<int>& candidates) const;
  bool left_to_readers(NodeId n, const Loop& form, const std::vector<Read>& reads) const;
  static bool is_light(Scalar scalar);
  std::optional<double> elements_read(ValueId value) const;

  const Graph& graph_;
  Views& views_;
  const machine::Machine& device_;
  const machine::Strategy& strategy_;
  const Options& options_;
  const kernels::TileLibrary* tiles_;
  const Demoted& demoted_;
  std::set<ValueId> made_of_demoted_;  // members that are computed from one in their own group
  Grouping out_;
};

}  // namespace obelisk::stitch
