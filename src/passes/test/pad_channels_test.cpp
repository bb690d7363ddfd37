// Convolutions with padded channels mean the same: in f64, so that the order of a sum is all that
// differs.
#include "graph/graph.h"
#include "passes/passes.h"

#include <gtest/gtest.h>

#include <random>

namespace obelisk::passes {
namespace {

using graph::Graph;
using graph::Op;
using graph::ValueId;

/// Values of [2, C, 4, 4], C from 1 to 9, through ops that pads may or may not go through.
class Maker {
 public:
  explicit Maker(unsigned seed) : random_(seed) {}

  Graph made() {
    values_.push_back(graph_.add_input("x", {DType::f64, {2, 1 + below(9), 4, 4}}));
    for (int k = 0; k < 24; ++k) values_.push_back(next());
    for (size_t k = values_.size() - 3; k < values_.size(); ++k)
      graph_.mark_output(values_[k], "y" + std::to_string(k));
    return std::move(graph_);
  }
  Tensor filled(const Shape& shape) {
    std::uniform_real_distribution<double> uniform(-1, 1);
    Tensor tensor = Tensor::allocate({DType::f64, shape});
    for (int64_t k = 0; k < tensor.count(); ++k) tensor.set_double(k, uniform(random_));
    return tensor;
  }

 private:
  int64_t below(int64_t most) {
    return static_cast<int64_t>(random_() % static_cast<unsigned>(most));
  }
  int64_t channels(ValueId of) const { return graph_.type(of).shape[1]; }
  ValueId any() {
    return values_[static_cast<size_t>(below(static_cast<int64_t>(values_.size())))];
  }
  ValueId conv(ValueId x, int64_t outputs, int64_t groups) {
    const int64_t side = below(2) * 2 + 1, pad = side / 2;
    std::vector<ValueId> inputs = {
        x, graph_.add_constant(filled({outputs, channels(x) / groups, side, side}))};
    if (below(2)) inputs.push_back(graph_.add_constant(filled({outputs})));
    return graph_.must_add(
        Op::Conv, std::move(inputs),
        ops::Attrs().set("group", groups).set("pads", std::vector<int64_t>{pad, pad, pad, pad}));
  }
  ValueId next() {
    const ValueId x = any();
    switch (below(13)) {
      case 0:
        return graph_.must_add(Op::Relu, {x});
      case 1:
        return graph_.must_add(Op::Sigmoid, {x});
      case 2:
        return graph_.must_add(Op::Exp, {graph_.must_add(Op::Tanh, {x})});
      case 3: {
        const ValueId other = any();
        return channels(other) == channels(x) ? graph_.must_add(Op::Add, {x, other}) : x;
      }
      case 4:
        return graph_.must_add(Op::Mul, {graph_.add_constant(filled({channels(x), 1, 1})), x});
      case 5:
        return graph_.must_add(Op::Mul, {x, graph_.must_add(Op::GlobalAveragePool, {x})});
      case 6:
        return graph_.must_add(Op::MaxPool, {x},
                               ops::Attrs()
                                   .set("kernel_shape", std::vector<int64_t>{3, 3})
                                   .set("pads", std::vector<int64_t>{1, 1, 1, 1}));
      case 7: {
        const ValueId sizes = graph_.add_constant(tensor_of(Shape{2, channels(x), 4, 4}));
        return graph_.must_add(
            Op::Resize,
            {graph_.must_add(Op::GlobalAveragePool, {x}), graph::kNone, graph::kNone, sizes},
            ops::Attrs().set("mode", std::string("nearest")));
      }
      case 8:
        return conv(x, channels(x), channels(x));
      case 9: {
        const std::vector<int64_t> pads{0, 0, 1, 1, 0, 0, -1, -1};
        const ValueId one = graph_.add_constant(tensor_of(DType::f64, {}, {1}));
        return graph_.must_add(Op::Pad, {x, graph_.add_constant(tensor_of(pads)), one});
      }
      default:
        return conv(x, 1 + below(9), 1);
    }
  }

  Graph graph_;
  std::mt19937 random_;
  std::vector<ValueId> values_;
};

TEST(PadChannels, MeanTheSame) {
  int padded = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Maker maker(seed);
    const Graph before = maker.made();
    const auto after = pad_channels(before, [](DType type, int64_t channels) {
      EXPECT_EQ(type, DType::f64);
      return (channels + 3) / 4 * 4;
    });
    ASSERT_TRUE(after.ok()) << after.error().text();
    ASSERT_TRUE(graph::verify(*after).ok());
    padded += print(before) != print(*after);
    const std::vector<Tensor> x = {maker.filled(before.type(before.inputs()[0]).shape)};
    const auto want = graph::interpret(before, x), got = graph::interpret(*after, x);
    ASSERT_TRUE(want.ok() && got.ok());
    for (size_t k = 0; k < want->size(); ++k) {
      ASSERT_EQ((*got)[k].type(), (*want)[k].type());
      for (int64_t i = 0; i < (*want)[k].count(); ++i) {
        const double wanted = (*want)[k].get_double(i);
        ASSERT_NEAR((*got)[k].get_double(i), wanted, 1e-9 * (1 + std::abs(wanted)));
      }
    }
  }
  EXPECT_GT(padded, 100);
}

}  // namespace
}  // namespace obelisk::passes
