// Einsum as MatMul: operands are joined from left to right, each pair over the letters that nothing
// later needs.
#include <algorithm>

#include "ops/einsum.h"
#include "ops/expand.h"
#include "ops/expand_steps.h"

namespace obelisk::ops {

namespace {

using Letters = std::vector<int>;

bool has(const Letters& letters, int letter) {
  return std::find(letters.begin(), letters.end(), letter) != letters.end();
}

// The letters of the output and of the operands behind `index`.
Letters needed_after(const EinsumPlan& plan, int index) {
  Letters needed;
  for (int letter = 0; letter < plan.output_rank; ++letter) needed.push_back(letter);
  for (size_t later = index + 1; later < plan.operands.size(); ++later) {
    needed.insert(needed.end(), plan.operands[later].begin(), plan.operands[later].end());
  }
  return needed;
}

// Whether what is joined stays as small as a tensor may be: "a,b,c,ad,bd,cd->" has a step [a,b,c].
bool joins_are_tensors(const EinsumPlan& plan) {
  Letters joined = plan.operands[0];
  for (int next = 1; next < static_cast<int>(plan.operands.size()); ++next) {
    const Letters& other = plan.operands[next];
    joined.insert(joined.end(), other.begin(), other.end());
    std::sort(joined.begin(), joined.end());
    joined.erase(std::unique(joined.begin(), joined.end()), joined.end());
    const Letters needed = needed_after(plan, next);
    std::erase_if(joined, [&](int letter) { return !has(needed, letter); });
    double count = 1;
    for (int letter : joined) count *= static_cast<double>(plan.extents[letter]);
    if (count > 0x1p40) return false;
  }
  return true;
}

// A value whose axes are distinct letters; every axis has its letter's full extent.
struct Lettered {
  Steps::Value value;
  Letters letters;
};

class EinsumSteps {
 public:
  EinsumSteps(const EinsumPlan& plan, Expander& expander) : plan_(plan), s_(expander) {}

  // Axes of extent 1 that broadcast against a longer letter are dropped.
  Lettered operand(int index) {
    Lettered result{s_.in(index), {}};
    const Shape shape = s_.shape(result.value);
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const int letter = plan_.operands[index][axis];
      if (shape[axis] == plan_.extents[letter]) result.letters.push_back(letter);
    }
    result.value = s_.reshape(result.value, shape_of(result.letters));
    return result;
  }

  // Sums over the letters that only `x` has and `needed` lacks.
  Lettered summed(Lettered x, const Letters& other, const Letters& needed) {
    std::vector<int64_t> axes;
    Letters kept;
    for (size_t axis = 0; axis < x.letters.size(); ++axis) {
      const int letter = x.letters[axis];
      if (has(other, letter) || has(needed, letter))
        kept.push_back(letter);
      else
        axes.push_back(static_cast<int64_t>(axis));
    }
    if (!axes.empty()) x.value = s_.reduce(Op::ReduceSum, x.value, axes, false);
    x.letters = kept;
    return x;
  }

  Lettered join(Lettered a, Lettered b, const Letters& needed) {
    a = summed(a, b.letters, needed);
    b = summed(b, a.letters, needed);
    Letters batch, rows, columns, shared;
    for (int letter : a.letters) {
      if (!has(b.letters, letter))
        rows.push_back(letter);
      else if (has(needed, letter))
        batch.push_back(letter);
      else
        shared.push_back(letter);
    }
    for (int letter : b.letters) {
      if (!has(a.letters, letter)) columns.push_back(letter);
    }
    Letters joined = batch;
    joined.insert(joined.end(), rows.begin(), rows.end());
    joined.insert(joined.end(), columns.begin(), columns.end());
    const Shape left = folded(batch, {rows, shared}), right = folded(batch, {shared, columns});
    const auto x = s_.reshape(ordered(a, concat(batch, rows, shared)).value, left);
    const auto y = s_.reshape(ordered(b, concat(batch, shared, columns)).value, right);
    // With nothing to sum over the inner extent is 1, and a broadcast product does.
    const auto product = s_(shared.empty() ? Op::Mul : Op::MatMul, x, y);
    return {s_.reshape(product, shape_of(joined)), joined};
  }

  Lettered ordered(Lettered x, const Letters& order) {
    std::vector<int64_t> perm;
    for (int letter : order) {
      perm.push_back(std::find(x.letters.begin(), x.letters.end(), letter) - x.letters.begin());
    }
    if (!std::is_sorted(perm.begin(), perm.end())) {
      x.value = s_.add(Op::Transpose, {x.value}, Attrs().set("perm", perm));
    }
    x.letters = order;
    return x;
  }

 private:
  static Letters concat(const Letters& a, const Letters& b, const Letters& c) {
    Letters all = a;
    all.insert(all.end(), b.begin(), b.end());
    all.insert(all.end(), c.begin(), c.end());
    return all;
  }
  Shape shape_of(const Letters& letters) const {
    Shape shape;
    for (int letter : letters) shape.push_back(plan_.extents[letter]);
    return shape;
  }
  Shape folded(const Letters& batch, std::initializer_list<Letters> groups) const {
    Shape shape = shape_of(batch);
    for (const Letters& group : groups) shape.push_back(element_count(shape_of(group)));
    return shape;
  }

  const EinsumPlan& plan_;
  Steps s_;
};

}  // namespace

// Left to its loop: one operand, integers, a diagonal, or nothing that two operands share and the
// output lacks.
std::vector<int32_t> expand_einsum(const Call& call, Expander& expander) {
  const EinsumPlan plan = einsum_plan(call).value();
  if (call.arity() < 2 || !is_float(call.out().dtype)) return {};
  std::vector<int> uses(plan.extents.size(), 0);
  for (const Letters& letters : plan.operands) {
    for (int letter : letters) {
      if (std::count(letters.begin(), letters.end(), letter) > 1) return {};
      ++uses[letter];
    }
  }
  bool contracts = false;
  for (size_t letter = plan.output_rank; letter < uses.size(); ++letter) {
    contracts = contracts || uses[letter] > 1;
  }
  const bool empty = std::count(plan.extents.begin(), plan.extents.end(), 0) > 0;
  if (!contracts || empty || !joins_are_tensors(plan)) return {};

  EinsumSteps steps(plan, expander);
  Letters output;
  for (int letter = 0; letter < plan.output_rank; ++letter) output.push_back(letter);
  Lettered joined = steps.operand(0);
  for (int next = 1; next < call.arity(); ++next)
    joined = steps.join(joined, steps.operand(next), needed_after(plan, next));
  return {steps.ordered(steps.summed(joined, {}, output), output).value};
}

}  // namespace obelisk::ops
