// Which cheap nodes get no group, because their readers compute them.
#include <algorithm>

#include "stitch/former.h"

namespace obelisk::stitch {

/// A light node that readers can compute as they read.
bool Former::can_be_left(NodeId n, const Loop& form, const std::vector<Read>& reads) const {
  const graph::Node& node = graph_.node(n);
  const Kind kind = ops::row(node.op).kind;
  if ((kind != Kind::kMap && kind != Kind::kMove) || node.outputs.size() != 1) return false;
  const ValueId out = node.outputs[0];
  if (form.combine != Combine::kNone || reads.size() > machine::thresholds::kMostReadsLeft ||
      form.exprs.size() > machine::thresholds::kMostExprsLeft)
    return false;
  if (graph_.is_output(out) || views_.needs_storage(out) || views_.has_pieces(out) ||
      views_.layout(out).storage != out)
    return false;
  for (int id = 0; id < form.exprs.size(); ++id)
    if (!is_light(form.exprs[id].scalar)) return false;
  return true;
}

/// One whose only reader is a reduction over what a tile gives, as the square of a norm: that
/// reader is another group whatever happens, and would read more bytes of this node's result than
/// of what it is made of. Not a product, whose tiles read what is stored.
bool Former::left_to_reduction(NodeId n, const Loop& form, const std::vector<Read>& reads,
                               const std::vector<int>& candidates) const {
  if (!can_be_left(n, form, reads)) return false;
  const ValueId out = graph_.node(n).outputs[0];
  const std::vector<NodeId> users = graph_.users(out);
  if (users.size() != 1 || !views_.loop(users[0], 0) ||
      views_.loop(users[0], 0)->combine == Combine::kNone ||
      ops::row(graph_.node(users[0]).op).kind == Kind::kCompute)
    return false;
  if (std::none_of(candidates.begin(), candidates.end(),
                   [&](int group) { return out_.drafts[group].anchored; }))
    return false;
  std::set<ValueId> values;
  int64_t bytes = 0;
  for (const Read& read : reads)
    if (values.insert(read.value).second) bytes += graph_.type(read.value).bytes();
  return bytes < graph_.type(out).bytes();
}

/// One that would begin a group, whose readers can compute it at once: what it reads is stored
/// anyway.
bool Former::left_to_readers(NodeId n, const Loop& form, const std::vector<Read>& reads) const {
  if (!can_be_left(n, form, reads)) return false;
  const ValueId out = graph_.node(n).outputs[0];
  const auto count = static_cast<double>(graph_.type(out).count());
  const std::optional<double> read = elements_read(out);
  return read && *read - count <= std::max(machine::thresholds::kComputedAgain,
                                           machine::thresholds::kComputedAgainShare * count);
}

bool Former::is_light(Scalar scalar) {
  switch (scalar) {
    case Scalar::kCoord:
    case Scalar::kConst:
    case Scalar::kLoad:
    case Scalar::kNeg:
    case Scalar::kAbs:
    case Scalar::kNot:
    case Scalar::kCast:
    case Scalar::kAdd:
    case Scalar::kSub:
    case Scalar::kMul:
    case Scalar::kMin:
    case Scalar::kMax:
    case Scalar::kLt:
    case Scalar::kLe:
    case Scalar::kEq:
    case Scalar::kAnd:
    case Scalar::kOr:
    case Scalar::kSelect:
      return true;
    default:
      return false;
  }
}

/// How many elements of `value` its readers read together, when all of them have loop forms that
/// walk it once.
std::optional<double> Former::elements_read(ValueId value) const {
  double sum = 0;
  for (NodeId user : graph_.users(value)) {
    const graph::Node& node = graph_.node(user);
    const Kind kind = ops::row(node.op).kind;
    if (node.outputs.size() != 1 && !views_.is_view(user)) return std::nullopt;
    for (ValueId out : node.outputs) {
      if (out == graph::kNone) continue;
      const auto whole = static_cast<double>(graph_.type(out).count());
      double read = whole;
      if (views_.is_view(user) && views_.layout(out).storage != out) {
        // A copy into a concatenation: it walks its own elements, whichever node reads them there.
      } else if (views_.is_view(user)) {
        if (views_.needs_storage(out)) return std::nullopt;
        const std::optional<double> beyond = elements_read(out);
        if (!beyond) return std::nullopt;
        read = *beyond;
      } else if ((kind != Kind::kMap && kind != Kind::kMove) || !views_.loop(user, 0)) {
        return std::nullopt;
      }
      if (node.op == ops::Op::Concat && whole > 0)
        read *= static_cast<double>(graph_.type(value).count()) / whole;
      sum += read;
    }
  }
  return sum;
}

}  // namespace obelisk::stitch
