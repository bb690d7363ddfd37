#include "ops/einsum.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "ops/moves.h"

namespace obelisk::ops {

namespace {

// One side of an equation, split into the letters before and after an ellipsis.
struct Term {
  std::string before, after;
  bool ellipsis = false;
  size_t letters() const { return before.size() + after.size(); }
};

Result<Term> parse_term(const Call& call, std::string_view text) {
  Term term;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '.') {
      if (term.ellipsis || text.substr(i, 3) != "...") {
        return bad_call(call, fmt::format("\"{}\" is not a term", text));
      }
      term.ellipsis = true;
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(text[i]))) {
      (term.ellipsis ? term.after : term.before) += text[i];
    } else {
      return bad_call(call, fmt::format("'{}' in an equation", text[i]));
    }
  }
  return term;
}

}  // namespace

Result<EinsumPlan> einsum_plan(const Call& call) {
  std::string text;
  for (char c : call.attrs.get_string("equation", "")) {
    if (!std::isspace(static_cast<unsigned char>(c))) text += c;
  }
  const size_t arrow = text.find("->");
  const std::string left = text.substr(0, arrow);
  std::vector<Term> terms;
  for (size_t begin = 0; begin <= left.size();) {
    const size_t end = std::min(left.find(',', begin), left.size());
    TRY(Term term, parse_term(call, std::string_view(left).substr(begin, end - begin)));
    terms.push_back(term);
    begin = end + 1;
  }
  if (static_cast<int>(terms.size()) != call.arity()) {
    return bad_call(
        call, fmt::format("\"{}\" has {} terms for {} inputs", text, terms.size(), call.arity()));
  }

  // Axes of the ellipsis are named by small characters, counted from the right: '\1' is the last.
  size_t hidden = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    const size_t rank = call.inputs[i] ? call.inputs[i]->shape.size() : 0;
    const size_t letters = terms[i].letters();
    if (rank < letters || (rank > letters && !terms[i].ellipsis)) {
      return bad_call(call, fmt::format("\"{}\": input {} has rank {}", text, i, rank));
    }
    hidden = std::max(hidden, rank - letters);
  }
  if (hidden > 26) return bad_call(call, fmt::format("an ellipsis of {} axes", hidden));
  auto spell = [](const Term& term, size_t rank) {
    std::string names = term.before;
    for (size_t k = rank; k-- > 0;) names += static_cast<char>(k + 1);
    return names + term.after;
  };

  std::string output;
  if (arrow != std::string::npos) {
    TRY(Term term, parse_term(call, std::string_view(text).substr(arrow + 2)));
    output = spell(term, term.ellipsis ? hidden : 0);
  } else {  // the ellipsis, then every letter used once, in alphabetic order
    std::map<char, int> uses;
    for (const Term& term : terms) {
      for (char c : term.before + term.after) ++uses[c];
    }
    output = spell({}, hidden);
    for (auto [letter, count] : uses) {
      if (count == 1) output += letter;
    }
  }

  EinsumPlan plan;
  plan.output_rank = static_cast<int>(output.size());
  std::map<char, int> number;
  for (char letter : output) {
    if (!number.emplace(letter, static_cast<int>(number.size())).second) {
      return bad_call(call, fmt::format("\"{}\" has a letter of the output twice", text));
    }
  }
  plan.extents.assign(number.size(), -1);
  for (size_t i = 0; i < terms.size(); ++i) {
    const Shape& shape = call.inputs[i]->shape;
    const std::string names = spell(terms[i], shape.size() - terms[i].letters());
    plan.operands.emplace_back();
    for (size_t axis = 0; axis < names.size(); ++axis) {
      auto [it, fresh] = number.emplace(names[axis], static_cast<int>(number.size()));
      if (fresh) plan.extents.push_back(-1);
      int64_t& extent = plan.extents[it->second];
      if (extent < 0 || extent == 1) extent = shape[axis];
      if (shape[axis] != extent && shape[axis] != 1) {
        return bad_call(call, fmt::format("\"{}\": extents {} and {} of one letter", text, extent,
                                          shape[axis]));
      }
      plan.operands.back().push_back(it->second);
    }
  }
  for (int64_t extent : plan.extents) {
    if (extent < 0)
      return bad_call(call, fmt::format("\"{}\" has an output letter of no input", text));
  }
  return plan;
}

Result<Types> infer_einsum(const Call& call) {
  for (int input = 0; input < call.arity(); ++input) {
    if (!call.has(input) || call.in(input).dtype != call.in(0).dtype) {
      return bad_call(call, fmt::format("input {} is not {}", input, to_string(call.in(0).dtype)));
    }
  }
  TRY(EinsumPlan plan, einsum_plan(call));
  plan.extents.resize(plan.output_rank);
  return Types{{call.in(0).dtype, plan.extents}};
}

Cost cost_einsum(const Call& call) {
  Cost cost = cost_move(call);
  if (auto plan = einsum_plan(call); plan.ok()) {
    cost.flops.count = static_cast<double>(call.arity());
    for (int64_t extent : plan->extents) cost.flops.count *= static_cast<double>(extent);
  }
  return cost;
}

namespace {

// sum over the summed letters of the product of all operands, at each point of the output.
template <typename Value, typename Get, typename Put>
void sum_products(const EinsumPlan& plan, std::span<const Tensor* const> inputs, Get&& get,
                  Put&& put) {
  const size_t letters = plan.extents.size();
  std::vector<std::vector<int64_t>> strides;  // per operand, per letter
  for (size_t i = 0; i < plan.operands.size(); ++i) {
    const auto axis_strides = row_major_strides(inputs[i]->shape());
    strides.emplace_back(letters, 0);
    for (size_t axis = 0; axis < axis_strides.size(); ++axis) {
      if (inputs[i]->shape()[axis] != 1) strides[i][plan.operands[i][axis]] += axis_strides[axis];
    }
  }
  const Shape outer(plan.extents.begin(), plan.extents.begin() + plan.output_rank);
  const Shape inner(plan.extents.begin() + plan.output_rank, plan.extents.end());
  std::vector<int64_t> base(strides.size());
  int64_t target = 0;
  for_each_point(outer, [&](const std::vector<int64_t>& at) {
    for (size_t i = 0; i < strides.size(); ++i) {
      base[i] = 0;
      for (size_t letter = 0; letter < at.size(); ++letter)
        base[i] += at[letter] * strides[i][letter];
    }
    Value sum = 0;
    for_each_point(inner, [&](const std::vector<int64_t>& summed) {
      Value value = 1;
      for (size_t i = 0; i < strides.size(); ++i) {
        int64_t source = base[i];
        for (size_t letter = 0; letter < summed.size(); ++letter) {
          source += summed[letter] * strides[i][plan.output_rank + letter];
        }
        value *= get(*inputs[i], source);
      }
      sum += value;
    });
    put(target++, sum);
  });
}

}  // namespace

std::optional<Loop> loop_einsum(const Call& call, int) {
  const EinsumPlan plan = einsum_plan(call).value();
  auto start = start_loop(plan.extents, plan.output_rank);
  auto& exprs = start.loop.exprs;
  for (size_t i = 0; i < plan.operands.size(); ++i) {
    const Type& type = call.in(static_cast<int>(i));
    std::vector<ExprId> at;
    for (size_t axis = 0; axis < type.shape.size(); ++axis) {
      at.push_back(type.shape[axis] == 1 ? exprs.integer(0) : start.coords[plan.operands[i][axis]]);
    }
    const ExprId load = exprs.load(static_cast<int>(i), type.dtype, std::move(at));
    start.loop.body = i == 0 ? load : exprs.mul(start.loop.body, load);
  }
  if (start.loop.parallel < static_cast<int>(start.loop.domain.size())) {
    start.loop.combine = Combine::kSum;
  }
  return start.loop;
}

Status reference_einsum(const Call& call, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs) {
  TRY(const EinsumPlan plan, einsum_plan(call));
  Tensor& to = outputs[0];
  if (is_float(to.dtype())) {
    sum_products<double>(
        plan, inputs, [](const Tensor& from, int64_t i) { return from.get_double(i); },
        [&](int64_t i, double value) { to.set_double(i, value); });
  } else {
    sum_products<uint64_t>(
        plan, inputs,
        [](const Tensor& from, int64_t i) { return static_cast<uint64_t>(from.get_int(i)); },
        [&](int64_t i, uint64_t value) { to.set_int(i, static_cast<int64_t>(value)); });
  }
  return ok_status();
}

// ---- Det ----------------------------------------------------------------------------------------

Result<Types> infer_det(const Call& call) {
  Type type = call.in(0);
  const int rank = type.rank();
  if (rank < 2 || type.shape[rank - 1] != type.shape[rank - 2]) {
    return bad_call(call, fmt::format("{} is not of square matrices", to_string(type)));
  }
  type.shape.resize(rank - 2);
  return Types{type};
}

Cost cost_det(const Call& call) {
  Cost cost = cost_move(call);
  cost.flops.count = static_cast<double>(call.in(0).count()) *
                     static_cast<double>(call.in(0).shape.back()) * 2 / 3;
  return cost;
}

// By elimination with row pivots.
Status reference_det(const Call&, std::span<const Tensor* const> inputs,
                     std::span<Tensor> outputs) {
  const Tensor& from = *inputs[0];
  const int64_t n = from.shape().back();
  std::vector<double> m(n * n);
  for (int64_t matrix = 0; matrix < outputs[0].count(); ++matrix) {
    for (int64_t i = 0; i < n * n; ++i) m[i] = from.get_double(matrix * n * n + i);
    double det = 1;
    for (int64_t column = 0; column < n; ++column) {
      int64_t pivot = column;
      for (int64_t row = column + 1; row < n; ++row) {
        if (std::fabs(m[row * n + column]) > std::fabs(m[pivot * n + column])) pivot = row;
      }
      if (pivot != column) {
        for (int64_t j = 0; j < n; ++j) std::swap(m[pivot * n + j], m[column * n + j]);
        det = -det;
      }
      det *= m[column * n + column];
      if (m[column * n + column] == 0) break;
      for (int64_t row = column + 1; row < n; ++row) {
        const double factor = m[row * n + column] / m[column * n + column];
        for (int64_t j = column; j < n; ++j) m[row * n + j] -= factor * m[column * n + j];
      }
    }
    outputs[0].set_double(matrix, det);
  }
  return ok_status();
}

}  // namespace obelisk::ops
