/// schedule/point_values.h — index expressions evaluated over many points at once.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace obelisk::schedule {

/// Evaluates integer and boolean expressions of a pool at a batch of points. Known are coordinates,
/// constants, integer arithmetic and loads of constant tensors; what depends on data is not.
class PointValues {
 public:
  /// The constant that a load reads, or nullptr. By the load's slot.
  using Constant = std::function<const Tensor*(int slot)>;

  PointValues(const ops::Exprs& exprs, Constant constant)
      : exprs_(exprs), constant_(std::move(constant)) {}

  /// Begins a batch: `coords[k]` has coordinate k of each point.
  void begin(std::vector<std::vector<int64_t>> coords);
  size_t points() const { return points_; }

  bool known(ops::ExprId id);
  /// One number a point; the expression must be known.
  const std::vector<int64_t>& operator[](ops::ExprId id);

 private:
  bool is_known(const ops::Expr& expr);
  std::vector<int64_t> evaluate(const ops::Expr& expr);
  std::vector<int64_t> load(const ops::Expr& expr);

  const ops::Exprs& exprs_;
  Constant constant_;
  std::vector<std::vector<int64_t>> coords_;
  size_t points_ = 0;
  std::map<ops::ExprId, bool> known_;
  std::map<ops::ExprId, std::vector<int64_t>> values_;
};

}  // namespace obelisk::schedule
