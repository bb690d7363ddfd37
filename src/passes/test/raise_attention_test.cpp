// Attention written in every way that the card names, at random: one op comes out and means the
// same.
#include "passes/raise_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "passes/passes.h"

namespace obelisk::passes {
namespace {

using graph::Graph;
using graph::NodeId;
using graph::ValueId;
using ops::Attrs;
using ops::Op;

/// One way to write attention.
class Writer {
 public:
  explicit Writer(uint64_t seed) : random_(seed) {}

  Graph write() {
    batch_ = 1 + below(2), groups_ = 1 + below(3), times_ = below(2) ? 1 + below(3) : 1;
    queries_ = 1 + below(5), keys_ = below(2) ? queries_ : 1 + below(7);
    size_ = 1 + below(6), value_size_ = 1 + below(6);
    heads_ = groups_ * times_;
    flat_ = times_ == 1 && below(3) == 0;  // [batch * heads, length, size]
    ValueId q = split("q", heads_, queries_, size_),
            v = repeated(split("v", groups_, keys_, value_size_));
    ValueId k = repeated(split("k", groups_, keys_, size_));
    if (below(3) == 0) q = scaled(q);
    if (flat_) q = flat(q), k = flat(k), v = flat(v);
    if (below(3) == 0) q = scaled(q);
    k = add(Op::Transpose, {k}, Attrs().set("perm", flat_ ? Ints{0, 2, 1} : Ints{0, 1, 3, 2}));
    if (below(3) == 0) k = scaled(k);
    ValueId scores = add(Op::MatMul, {q, k});
    if (below(2)) scores = scaled(scores);
    if (below(5) == 0) scores = capped(scores);
    for (int64_t masks = below(3); masks > 0; --masks) scores = masked(scores);
    if (below(5) == 0) scores = scaled(scores);
    if (flat_ && below(2)) {
      scores = reshape(scores, {batch_, heads_, queries_, keys_});
      if (below(2)) scores = masked(scores);
      if (below(2))
        v = reshape(v, {batch_, heads_, keys_, value_size_}), flat_ = false;
      else
        scores = reshape(scores, {batch_ * heads_, queries_, keys_});
    }
    ValueId weights = add(Op::Softmax, {scores}, Attrs().set("axis", int64_t{-1}));
    if (below(3) == 0) {
      const ValueId guard = add(Op::IsNaN, {weights});
      weights = add(Op::Where, {guard, number(0), weights});
    }
    ValueId out = add(Op::MatMul, {weights, v});
    if (flat_) out = reshape(out, {batch_, heads_, queries_, value_size_});
    if (below(2)) {
      out = add(Op::Transpose, {out}, Attrs().set("perm", Ints{0, 2, 1, 3}));
      if (below(2)) out = reshape(out, {batch_, queries_, heads_ * value_size_});
    }
    graph_.mark_output(out, "y");
    return std::move(graph_);
  }

 private:
  using Ints = std::vector<int64_t>;
  int64_t below(int64_t end) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(end));
  }
  ValueId add(Op op, std::vector<ValueId> inputs, Attrs attrs = {}) {
    return graph_.must_add(op, std::move(inputs), std::move(attrs), "node");
  }
  ValueId number(double value) { return graph_.add_constant(tensor_of(DType::f64, {}, {value})); }
  ValueId ints(const Ints& values) { return graph_.add_constant(tensor_of(values)); }
  ValueId reshape(ValueId x, const Shape& shape) { return add(Op::Reshape, {x, ints(shape)}); }

  ValueId split(const std::string& name, int64_t heads, int64_t length, int64_t size) {
    if (below(3) == 0) return graph_.add_input(name, {DType::f64, {batch_, heads, length, size}});
    const ValueId x = graph_.add_input(name, {DType::f64, {batch_, length, heads * size}});
    return add(Op::Transpose, {reshape(x, {batch_, length, heads, size})},
               Attrs().set("perm", Ints{0, 2, 1, 3}));
  }
  ValueId flat(ValueId x) {
    const Shape shape = graph_.type(x).shape;
    return reshape(x, {shape[0] * shape[1], shape[2], shape[3]});
  }
  ValueId repeated(ValueId x) {
    if (times_ == 1) return x;
    const Shape shape = graph_.type(x).shape;
    if (below(3) == 0) {
      Ints heads;
      for (int64_t head = 0; head < heads_; ++head) heads.push_back(head / times_);
      return add(Op::Gather, {x, ints(heads)}, Attrs().set("axis", int64_t{1}));
    }
    ValueId wide = add(Op::Unsqueeze, {x, ints({2})});
    if (below(2))
      wide = add(Op::Tile, {wide, ints({1, 1, times_, 1, 1})});
    else
      wide = add(Op::Expand, {wide, ints({shape[0], shape[1], times_, shape[2], shape[3]})});
    return reshape(wide, {shape[0], heads_, shape[2], shape[3]});
  }
  ValueId scaled(ValueId x) {
    const double by = 0.25 * static_cast<double>(1 + below(8));
    if (below(2)) return add(Op::Div, {x, number(by)});
    return below(2) ? add(Op::Mul, {x, number(by)}) : add(Op::Mul, {number(by), x});
  }
  ValueId capped(ValueId x) {
    return add(Op::Mul, {add(Op::Tanh, {add(Op::Div, {x, number(2)})}), number(2)});
  }
  ValueId masked(ValueId scores) {
    Shape shape = graph_.type(scores).shape;
    for (size_t axis = 0; axis < shape.size(); ++axis)
      if (below(2)) shape[axis] = 1;
    if (below(3) == 0) shape.erase(shape.begin());
    const std::string name = "mask" + std::to_string(masks_++);
    if (below(2)) {
      const ValueId mask = graph_.add_input(name, {DType::f64, shape});
      if (below(4) == 0) return add(Op::Sub, {scores, mask});
      return below(2) ? add(Op::Add, {scores, mask}) : add(Op::Add, {mask, scores});
    }
    const ValueId seen = graph_.add_input(name, {DType::b1, shape});
    const ValueId fill = number(below(2) ? -1e30 : -INFINITY);
    return below(2) ? add(Op::Where, {seen, scores, fill}) : add(Op::Where, {seen, fill, scores});
  }

  std::mt19937_64 random_;
  Graph graph_;
  int64_t batch_ = 1, groups_ = 1, times_ = 1, heads_ = 1;
  int64_t queries_ = 1, keys_ = 1, size_ = 1, value_size_ = 1;
  bool flat_ = false;
  int masks_ = 0;
};

int count(const Graph& graph, Op op) {
  int found = 0;
  for (NodeId id : graph.order()) found += graph.node(id).op == op;
  return found;
}

TEST(RaiseAttention, OneOpHoweverItIsWritten) {
  int packed = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const Graph written = Writer(seed).write();
    Result<Graph> simple = simplify_algebra(written);
    ASSERT_TRUE(simple.ok());
    const Result<Graph> raised = raise_attention(std::move(*simple));
    ASSERT_TRUE(raised.ok()) << raised.error().text();
    ASSERT_TRUE(graph::verify(*raised).ok()) << graph::verify(*raised).error().text();
    ASSERT_EQ(count(*raised, Op::Attention), 1) << graph::print(written);
    EXPECT_EQ(count(*raised, Op::Softmax) + count(*raised, Op::MatMul), 0);
    for (NodeId id : raised->order()) packed += raised->node(id).attrs.has("q_num_heads");
    const std::vector<Tensor> inputs = graph::random_inputs(written, seed);
    const auto want = graph::interpret(written, inputs), got = graph::interpret(*raised, inputs);
    ASSERT_TRUE(want.ok() && got.ok());
    const std::vector<ops::Tolerance> tolerances{{1e-9, 1e-9}};
    const graph::Comparison same = graph::compare(*got, *want, tolerances);
    EXPECT_TRUE(same.ok) << same.text() << "\n" << graph::print(written) << graph::print(*raised);
  }
  EXPECT_GT(packed, 10);
}

TEST(RaiseAttention, AGuardMakesZerosOfMaskedRowsAndHidesNoOtherNaN) {
  Graph written;
  const ValueId q = written.add_input("q", {DType::f32, {1, 1, 3, 2}});
  const ValueId kt = written.add_input("kt", {DType::f32, {1, 1, 2, 4}});
  const ValueId v = written.add_input("v", {DType::f32, {1, 1, 4, 2}});
  const ValueId mask = written.add_input("mask", {DType::f32, {1, 1, 3, 4}});
  const auto add = [&](Op op, std::vector<ValueId> inputs) {
    return written.must_add(op, std::move(inputs), {}, "node");
  };
  const ValueId weights = add(Op::Softmax, {add(Op::Add, {add(Op::MatMul, {q, kt}), mask})});
  const ValueId zero = written.add_constant(tensor_of(DType::f32, {}, {0}));
  const ValueId kept = add(Op::Where, {add(Op::IsNaN, {weights}), zero, weights});
  written.mark_output(add(Op::MatMul, {kept, v}), "y");
  const Result<Graph> raised = raise_attention(written);
  ASSERT_TRUE(raised.ok()) << raised.error().text();
  ASSERT_EQ(count(*raised, Op::Attention), 1) << graph::print(*raised);
  EXPECT_EQ(count(*raised, Op::IsNaN), 0);

  // Row 1 has no key left; the second column of V has a NaN.
  std::vector<Tensor> inputs = graph::random_inputs(written, 7);
  for (int64_t k = 0; k < 12; ++k) inputs[3].set_double(k, k / 4 == 1 ? -INFINITY : 0);
  inputs[2].set_double(5, NAN);
  const auto parts = graph::interpret(written, inputs), whole = graph::interpret(*raised, inputs);
  ASSERT_TRUE(parts.ok() && whole.ok());
  for (int64_t k = 0; k < 6; ++k) {
    SCOPED_TRACE(k);
    const double want = (*parts)[0].get_double(k), got = (*whole)[0].get_double(k);
    if (k % 2 == 1)
      EXPECT_TRUE(std::isnan(want) && std::isnan(got));
    else
      EXPECT_NEAR(got, want, 1e-6);
  }
}

}  // namespace
}  // namespace obelisk::passes
