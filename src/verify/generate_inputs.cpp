// Inputs for a network that nobody gave inputs for.
//
// An input's range is found by following it forward through ops that keep its values (casts, moves,
// selections, sums with constants): where it arrives as an index, the extent that it indexes bounds
// it; where it arrives at a comparison or is cast to a float, it is a mask. What arrives nowhere is
// a small number.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "verify/verify.h"

namespace obelisk::verify {
namespace {

using ops::Op;

struct Range {
  // inclusive, of indices
  int64_t low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
  bool index = false, mask = false;
};

int64_t largest(const Tensor& tensor) {
  int64_t most = 0;
  for (int64_t k = 0; k < tensor.count(); ++k) most = std::max(most, tensor.get_int(k));
  return most;
}

class Follower {
 public:
  explicit Follower(const Graph& graph) : graph_(graph) {}

  Range follow(ValueId input) {
    walk(input, 0);
    return range_;
  }

 private:
  void index_into(int64_t extent, int64_t added) {
    range_.index = true;
    range_.low = std::max<int64_t>(range_.low, 0);
    range_.high = std::min(range_.high, std::max<int64_t>(extent - 1 - added, 0));
  }

  void walk(ValueId value, int64_t added) {
    if (!seen_.insert(value).second) return;
    for (graph::NodeId id : graph_.users(value)) visit(graph_.node(id), value, added);
  }

  void visit(const graph::Node& node, ValueId value, int64_t added) {
    const auto at = [&](size_t k) { return k < node.inputs.size() && node.inputs[k] == value; };
    const auto on = [&] {
      for (ValueId out : node.outputs) walk(out, added);
    };
    const auto axis_of = [&](ValueId data, int64_t otherwise) {
      const int64_t rank = graph_.type(data).rank(), axis = node.attrs.get_int("axis", otherwise);
      return graph_.type(data).shape[axis < 0 ? axis + rank : axis];
    };
    switch (node.op) {
      case Op::Gather:
      case Op::GatherElements:
      case Op::ScatterElements:
        if (at(1)) index_into(axis_of(node.inputs[0], 0), added);
        if (at(0)) on();
        return;
      case Op::GatherND:
      case Op::ScatterND: {
        if (at(0)) on();
        if (!at(1)) return;
        const int64_t batch = node.attrs.get_int("batch_dims", 0),
                      width = graph_.type(value).shape.back();
        for (int64_t d = 0; d < width; ++d)
          index_into(graph_.type(node.inputs[0]).shape[batch + d], added);
        return;
      }
      case Op::OneHot:
        if (at(0) && graph_.value(node.inputs[1]).is_constant())
          index_into(largest(graph_.value(node.inputs[1]).constant), added);
        return;
      case Op::Add: {
        const ValueId other = at(0) ? node.inputs[1] : node.inputs[0];
        const graph::Value& constant = graph_.value(other);
        const bool known = constant.is_constant() && !is_float(constant.type.dtype);
        for (ValueId out : node.outputs)
          walk(out, added + (known ? largest(constant.constant) : 0));
        return;
      }
      case Op::Mul: {  // of masks; an index that is multiplied has a range that is not told here
        const ValueId other = at(0) ? node.inputs[1] : node.inputs[0];
        const graph::Value& constant = graph_.value(other);
        if (!is_float(constant.type.dtype) &&
            (!constant.is_constant() || largest(constant.constant) <= 1))
          on();
        return;
      }
      case Op::Cast: {
        const bool to_float = is_float(graph_.type(node.outputs[0]).dtype),
                   from_float = is_float(graph_.type(value).dtype);
        if ((to_float && !from_float) || graph_.type(node.outputs[0]).dtype == DType::b1)
          range_.mask = true;
        on();
        return;
      }
      case Op::Equal:
      case Op::Greater:
      case Op::Less:
      case Op::GreaterOrEqual:
      case Op::LessOrEqual:
      case Op::Not:
      case Op::And:
      case Op::Or:
        range_.mask = true;
        return;
      case Op::Identity:
      case Op::Reshape:
      case Op::Flatten:
      case Op::Squeeze:
      case Op::Unsqueeze:
      case Op::Transpose:
      case Op::Expand:
      case Op::Slice:
      case Op::Split:
      case Op::Concat:
      case Op::Tile:
      case Op::Pad:
      case Op::Clip:
      case Op::Max:
      case Op::Min:
      case Op::Where:
      case Op::ReduceMax:
      case Op::ReduceMin:
      case Op::ReverseSequence:
      case Op::CumSum:
        on();
        return;
      default:
        return;
    }
  }

  const Graph& graph_;
  std::set<ValueId> seen_;
  Range range_;
};

/// A generator whose numbers are the same everywhere (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(unit() * static_cast<double>(high - low + 1));
  }
  /// Close to normal(0, 1), and free of libm, whose last bit differs between machines: twelve
  /// uniform numbers.
  double normal() {
    double sum = -6;
    for (int k = 0; k < 12; ++k) sum += unit();
    return sum;
  }

 private:
  uint64_t state_;
};

void fill(Tensor& tensor, const Range& range, Random& random) {
  const DType dtype = tensor.dtype();
  const int64_t last = tensor.shape().empty() ? 1 : std::max<int64_t>(tensor.shape().back(), 1);
  for (int64_t k = 0; k < tensor.count(); ++k) {
    if (range.index) {
      const int64_t index = random.between(std::max<int64_t>(range.low, 0), range.high);
      is_float(dtype) ? tensor.set_double(k, static_cast<double>(index)) : tensor.set_int(k, index);
    } else if (is_float(dtype)) {
      tensor.set_double(k, random.normal());
    } else if (dtype == DType::b1 || range.mask) {
      tensor.set_int(k, k % last == 0 || random.unit() < 0.75);  // no row of a mask is empty
    } else if (bits(dtype) == 8) {
      tensor.set_int(k, is_signed(dtype) ? random.between(-100, 100) : random.between(0, 200));
    } else {
      tensor.set_int(
          k, bits(dtype) < 8 ? random.between(0, bits(dtype) == 2 ? 1 : 7) : random.between(1, 5));
    }
  }
}

}  // namespace

std::vector<Tensor> generate_inputs(const Graph& graph, uint64_t seed) {
  std::vector<Tensor> inputs;
  for (ValueId input : graph.inputs()) {
    Random random(seed * 0x2545f4914f6cdd1d + hash_text(graph.value(input).name).low);
    Tensor tensor = Tensor::allocate(graph.type(input));
    fill(tensor, Follower(graph).follow(input), random);
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

}  // namespace obelisk::verify
