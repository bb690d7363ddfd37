/// verify/rows.h — some rows of the outputs, and an interpreter of only what they depend on.
///
/// From the requested rows of each output the elements that they need are propagated backwards
/// through the graph, a set of coordinates for each dimension of each value: through an op that
/// treats a dimension's coordinates alike (elementwise ops, rows and columns of products, images of
/// a batch, rows of a norm), pixels of a convolution, and moves. Other ops need the whole of what
/// they read. Every node is then interpreted on what is left of it, by the reference of its op, so
/// this is the same reference as for whole outputs.
#pragma once

#include "verify/verify.h"

namespace obelisk::verify {

Error interrupted();
/// False, and `stopped`, once interrupted.
bool keep_on(const Options& options, bool& stopped);
/// The interpreter in a program's arithmetic.
graph::Interpretation rounding_as(Precision precision);

/// The tensor's rows; the tensor itself for all of them.
Tensor rows_of(const Tensor& tensor, const Rows& rows);

/// `count` rows of each output, evenly spread with the first and the last among them: of the first
/// dimension of more than one element. All of an output that has no more.
std::vector<Rows> spread_rows(const Graph& graph, int64_t count);

/// Coordinates of one dimension, ascending. A run of neighbours is kept as its two ends: a table of
/// 10^9 rows that is read whole takes no list of them.
class Coordinates {
 public:
  Coordinates() = default;
  Coordinates(std::vector<int64_t> at);  // ascending
  static Coordinates run(int64_t first, int64_t count);

  int64_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  int64_t operator[](int64_t k) const {
    return at_.empty() ? first_ + k : at_[static_cast<size_t>(k)];
  }
  int64_t front() const { return (*this)[0]; }
  int64_t back() const { return (*this)[count_ - 1]; }
  /// Which of them it is; -1: none.
  int64_t find(int64_t wanted) const;
  bool operator==(const Coordinates&) const = default;

 private:
  int64_t first_ = 0, count_ = 0;
  std::vector<int64_t> at_;  // where they are no run
};

/// Coordinates of each dimension; no coordinate of some dimension: no element.
using Region = std::vector<Coordinates>;

/// How a node is interpreted.
struct Part {
  bool needed = false;
  bool whole = true;        // otherwise of these regions, with these attributes
  std::vector<Region> out;  // by output: what is computed
  std::vector<Region> in;   // by input; of absent ones nothing
  ops::Attrs attrs;
};

/// What of a graph some rows of its outputs depend on.
class Demand {
 public:
  Demand(const Graph& graph, std::span<const Rows> rows);
  /// Of the reference: multiply-adds count as two, and what is written.
  double flops() const;
  double elements() const;
  /// At once, of values in f64 and of copies that a reference makes.
  double peak_bytes() const;
  /// The rows of each output. As graph::interpret, of whose modes `how` says one.
  Result<std::vector<Tensor>> interpret(std::span<const Tensor> inputs,
                                        const graph::Interpretation& how) const;

 private:
  Result<std::vector<Tensor>> interpret_parts(std::span<const Tensor> inputs,
                                              const graph::Interpretation& how) const;
  void need(ValueId value, const Region& region);
  Region needed_of_any(const graph::Node& node) const;
  const Graph& graph_;
  std::vector<Rows> rows_;
  std::vector<Region> regions_;  // by value; empty of a scalar that is needed, and of what is not
  std::vector<bool> needed_;     // by value
  std::vector<Part> parts_;      // by node
};

}  // namespace obelisk::verify
