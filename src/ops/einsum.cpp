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
    return bad_call(call, fmt::format("\"{}\" has {} terms for {} inputs", text, terms.size(),
                                      call.arity()));
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
    if (extent < 0) return bad_call(call, fmt::format("\"{}\" has an output letter of no input", text));
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

// ---- Det ------------------------------------------------------------------------------------------------------------

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

}  // namespace obelisk::ops
