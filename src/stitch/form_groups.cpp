#include "stitch/form_groups.h"

#include "stitch/adapt.h"
#include "stitch/attention_tile.h"
#include "stitch/conv_tile.h"
#include "stitch/gemm_tile.h"

#include <algorithm>
#include <functional>

namespace obelisk::stitch {
namespace {

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
         const kernels::TileLibrary* tiles, const Demoted& demoted)
      : graph_(graph),
        views_(views),
        device_(device),
        strategy_(strategy),
        options_(options),
        tiles_(tiles),
        demoted_(demoted) {
    out_.group_of.assign(graph.value_count(), -1);
  }

  Grouping run() {
    for (NodeId n : graph_.order()) {
      if (views_.is_free(n)) continue;
      place(n);
    }
    sort();
    return std::move(out_);
  }

 private:
  void place(NodeId n) {
    const graph::Node& node = graph_.node(n);
    bool loops = true;
    for (size_t output = 0; output < node.outputs.size(); ++output)
      loops = loops &&
              (node.outputs[output] == graph::kNone || views_.loop(n, static_cast<int>(output)));
    std::string why;
    if (!loops && has_attention_tile(graph_, n, tiles_, why)) {
      Draft draft;
      draft.group.kind = GroupKind::kAttention;
      draft.group.attention = match_attention(graph_, views_, n, *tiles_, strategy_.dataflow());
      const AttentionTile& tile = draft.group.attention;
      std::vector<ValueId> reads = {tile.q.value, tile.k.value, tile.v.value};
      if (tile.mask.value != graph::kNone) reads.push_back(tile.mask.value);
      return place_anchor(n, std::move(draft), graph_.type(node.outputs[0]).rank() - 1, reads);
    }
    if (!loops && node.op == ops::Op::NormStatistics) return place_statistics(n);
    if (!loops) return place_call(n);
    if (tiles_ && node.outputs.size() == 1) {
      if (auto conv = match_conv(graph_, n, tiles_, why)) {
        const Layout& x = views_.layout(conv->x);
        // Where a machine cuts convolutions into pixels, its product tile is the quicker one for
        // single pixels.
        auto pixels = tiles_->conv.pixels ? match_pixel_product(views_, *conv) : std::nullopt;
        if (pixels && tile_fits(*tiles_, *pixels, why)) {
          Draft draft;
          draft.group.kind = GroupKind::kProduct;
          const std::vector<ValueId> reads = {conv->x, conv->w};
          draft.group.product = std::move(*pixels);
          return place_anchor(n, std::move(draft), 1, reads);
        }
        if (x.strides[1] == 1 || conv->shape.inputs == 1) {
          Draft draft;
          draft.group.kind = GroupKind::kConv;
          const std::vector<ValueId> reads = {conv->x, conv->w};
          draft.group.conv = std::move(*conv);
          return place_anchor(n, std::move(draft), 1, reads);
        }
      }
      if (auto product = match_product(graph_, views_, n, why)) {
        if (tile_fits(*tiles_, *product, why)) {
          Draft draft;
          draft.group.kind = GroupKind::kProduct;
          const std::vector<ValueId> reads = {product->a, product->b};
          const int column = static_cast<int>(product->n[0].c);
          draft.group.product = std::move(*product);
          if (views_.twin(n) != graph::kNone)
            draft.group.product.twin = true, draft.group.product.n[0].extent /= 2;
          return place_anchor(n, std::move(draft), column, reads);
        }
      }
    }
    for (size_t output = 0; output < node.outputs.size(); ++output) {
      if (node.outputs[output] == graph::kNone) continue;
      if (ops::row(node.op).kind == Kind::kMove && !views_.needs_storage(node.outputs[output]) &&
          views_.is_view(n))
        continue;
      place_loop(n, static_cast<int>(output));
    }
  }

  // ---- values read from outside ----------------------------------------------------------------------------------

  void read_from(Draft& draft, ValueId value) {
    if (views_.has_pieces(value)) {
      for (ValueId piece : views_.pieces(value)) note_after(draft, piece);
    } else {
      note_after(draft, value);
    }
  }
  void note_after(Draft& draft, ValueId value) {
    out_.read_outside.insert(value);
    const int group = out_.group_of[value];
    if (group >= 0) draft.after.insert(group);
  }
  std::vector<int> groups_behind(ValueId value) const {
    std::vector<int> groups;
    if (views_.has_pieces(value)) {
      for (ValueId piece : views_.pieces(value))
        if (out_.group_of[piece] >= 0) groups.push_back(out_.group_of[piece]);
    } else if (out_.group_of[value] >= 0) {
      groups.push_back(out_.group_of[value]);
    }
    return groups;
  }
  /// Whether the group computes something that is stored inside `value`: its own tasks may read
  /// that no sooner than other tasks may.
  bool writes_piece_of(int group, ValueId value) const {
    if (!views_.has_pieces(value)) return false;
    const std::vector<ValueId>& pieces = views_.pieces(value);
    return std::any_of(pieces.begin(), pieces.end(),
                       [&](ValueId piece) { return out_.group_of[piece] == group; });
  }
  int operand(Draft& draft, ValueId value) {
    auto [it, fresh] =
        draft.operand.try_emplace(value, static_cast<int>(draft.group.body.operands.size()));
    if (fresh) draft.group.body.operands.push_back(value);
    return it->second;
  }

  /// Does draft `from` (transitively) run after draft `target`?
  bool reaches(int from, int target) const {
    if (from == target) return true;
    std::vector<int> stack{from};
    std::set<int> seen;
    while (!stack.empty()) {
      const int g = stack.back();
      stack.pop_back();
      for (int next : out_.drafts[g].after) {
        if (next == target) return true;
        if (seen.insert(next).second) stack.push_back(next);
      }
    }
    return false;
  }

  /// The producer that runs latest comes first: a node that joined another would make that one wait
  /// too, and a shortcut's convolution would run after the branch that it runs beside.
  void deepest_first(std::vector<int>& candidates) const {
    if (candidates.size() < 2) return;
    std::map<int, int> depth;  // of drafts: the longest chain before each
    for (int candidate : candidates) {
      std::vector<int> stack{candidate};
      while (!stack.empty()) {
        const int g = stack.back();
        int longest = 0;
        bool ready = true;
        for (int before : out_.drafts[g].after) {
          if (before == g) continue;
          auto known = depth.find(before);
          if (known != depth.end())
            longest = std::max(longest, known->second + 1);
          else
            stack.push_back(before), ready = false;
        }
        if (ready) depth[g] = longest, stack.pop_back();
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](int a, int b) { return depth[a] > depth[b]; });
  }

  // ---- beginning groups --------------------------------------------------------------------------------------------

  /// An op without a loop form: a hand-written block, or, where none is, the reference.
  void place_call(NodeId n) {
    Draft draft;
    draft.group.kind = GroupKind::kCustom;
    draft.group.anchor = n;
    // As many pieces as may run at once: a block that cuts a line reads all of its updates in each.
    const int64_t threads = device_.family == machine::Family::kCpu ? 1 : 256;
    if (auto block =
            ops::block(graph_.call(n), device_.sms * threads, teams_of(device_, options_))) {
      draft.group.kind = GroupKind::kBlock;
      draft.group.body.domain = {block->items};
      draft.group.body.rows = 1;
      draft.group.block = std::move(*block);
    }
    draft.group.nodes = {n};
    for (ValueId v : graph_.node(n).inputs) {
      if (v == graph::kNone) continue;
      operand(draft, v);
      read_from(draft, v);
      explain(v, n, Scheme::kGlobal, "the reader has no loop form");
    }
    for (ValueId v : graph_.node(n).outputs)
      if (v != graph::kNone) operand(draft, v);
    add(std::move(draft), n);
  }

  /// Begins a group whose anchor a tile computes; what follows the sum (a bias, a scale) is already
  /// its epilogue.
  void place_anchor(NodeId n, Draft draft, int column, const std::vector<ValueId>& reads) {
    draft.group.anchor = draft.group.dominant = n;
    draft.group.nodes = {n};
    draft.anchored = true;
    draft.open = false;
    // The halves of a twin product are two members, at the same points.
    std::vector<ValueId> outs = {graph_.node(n).outputs[0]};
    if (draft.group.kind == GroupKind::kProduct && draft.group.product.twin) {
      outs = graph_.node(views_.twin(n)).outputs;
      draft.group.nodes.push_back(views_.twin(n));
      explain(graph_.node(n).outputs[0], views_.twin(n), Scheme::kLocal,
              "halves that meet: a task computes the same columns of both");
    }
    const Shape& shape = graph_.type(outs[0]).shape;
    Body& body = draft.group.body;
    body.domain = shape;
    draft.is_column.assign(shape.size(), false);
    draft.is_column[column] = true;
    Member member;
    for (size_t d = 0; d < shape.size(); ++d)
      member.at.push_back(body.exprs.coord(static_cast<int>(d), shape[d]));
    for (ValueId v : reads) {
      read_from(draft, v);
      explain(v, n, Scheme::kGlobal, "an operand of a tile is read by many workers");
    }
    const Loop* form = views_.loop(n, 0);  // attention has none
    const bool wide =
        draft.group.kind == GroupKind::kProduct && draft.group.product.a_type == DType::f64;
    const ExprId tile = body.exprs.load(kTileSlot, wide ? DType::f64 : DType::f32, {});
    member.value = tile;
    if (form && form->finish != kNoExpr) {
      std::vector<ExprId> coords = member.at;
      for (size_t d = shape.size(); d < form->domain.size(); ++d)
        coords.push_back(body.exprs.integer(0));
      auto leaf = [&](ValueId value, DType dtype, std::vector<ExprId> at, ExprId guard,
                      ExprId otherwise) {
        read_from(draft, value);
        explain(value, n, Scheme::kGlobal, "computed by another group");
        return body.exprs.load(operand(draft, value), dtype, std::move(at), guard, otherwise);
      };
      member.value = body.exprs.import(
          form->exprs, form->finish, coords,
          [&](int slot, DType dtype, std::vector<ExprId> at, ExprId guard, ExprId otherwise) {
            return views_.read(body.exprs, graph_.node(n).inputs[slot], dtype, std::move(at), guard,
                               otherwise, leaf);
          },
          tile);
    }
    for (size_t side = 0; side < outs.size(); ++side) {
      if (side > 0)
        member.value =
            body.exprs.load(kTileSlot + static_cast<int>(side), body.exprs[tile].dtype, {});
      draft.members[outs[side]] = member;
    }
    add(std::move(draft), n);
  }

  /// Whether the body of a product stores `x` as the rows that `reader` multiplies: it then leaves
  /// partial statistics of them, for it has them in registers.
  bool leaves_partials(ValueId x, const Product& reader) {
    const int id = out_.group_of[x];
    if (id < 0 || out_.drafts[id].group.kind != GroupKind::kProduct || reader.a != x ||
        !reader.batch.empty())
      return false;
    Draft& from = out_.drafts[id];
    const auto member = from.members.find(x);
    const Shape& shape = graph_.type(x).shape;
    const Layout& layout = views_.layout(x);
    if (member == from.members.end() ||
        !walks_in_order(from.group.body, member->second.at, shape) ||
        shape.back() % kPartialColumns != 0)
      return false;
    if (from.group.product.twin || !from.group.product.batch.empty()) return false;
    if (layout.storage != x || layout.strides != row_major_strides(shape)) return false;
    if (from.group.partials != graph::kNone && from.group.partials != x) return false;
    from.group.partials = x;
    return true;
  }
  /// Row values of the product that reads those rows: its tile gives them.
  void place_statistics(NodeId n) {
    const graph::Node& node = graph_.node(n);
    ValueId product = node.inputs[1];
    if (const NodeId halves = graph_.producer(product, ops::Op::Split);
        halves != graph::kNone && out_.group_of[product] < 0)
      product = graph_.node(halves).inputs[0];  // they do not meet
    const int id = out_.group_of[product];
    CHECK(id >= 0, "the product of '{}' stands in no group", node.name);
    Draft& draft = out_.drafts[id];
    const Member sum = draft.members.at(product);
    CHECK(draft.group.kind == GroupKind::kProduct &&
              sum.value == draft.group.body.exprs.load(kTileSlot, DType::f32, {}),
          "'{}' is no statistic of a tile's rows", node.name);
    draft.group.product.statistics = {true, node.attrs.get_int("centred", 1) != 0,
                                      leaves_partials(node.inputs[0], draft.group.product),
                                      node.attrs.get_float("epsilon", 1e-5f)};
    Exprs& exprs = draft.group.body.exprs;
    for (int k = 0; k < 2; ++k) {
      Member member{
          .at = sum.at, .value = exprs.load(kStatisticSlot + k, DType::f32, {}), .per_row = true};
      member.at.back() = exprs.integer(0);
      draft.members[node.outputs[k]] = std::move(member);
      out_.group_of[node.outputs[k]] = id;
    }
    draft.group.nodes.push_back(n);
    explain(node.inputs[0], n, Scheme::kRegional,
            "the tile that reads whole rows gives their statistics");
  }

  void add(Draft draft, NodeId n) {
    const int id = static_cast<int>(out_.drafts.size());
    for (const auto& [v, member] : draft.members) out_.group_of[v] = id;
    if (calls_op(draft.group.kind))
      for (ValueId v : graph_.node(n).outputs)
        if (v != graph::kNone) out_.group_of[v] = id;
    out_.drafts.push_back(std::move(draft));
  }

  void place_loop(NodeId n, int output) {
    const ValueId out = graph_.node(n).outputs[output];
    const Loop& form = *views_.loop(n, output);
    std::vector<int> candidates;  // groups of direct producers, latest first
    std::vector<Read> reads;
    Exprs scratch;
    collect(n, form, scratch, reads);
    for (const Read& read : reads)
      for (int group : groups_behind(read.value))
        if (std::find(candidates.begin(), candidates.end(), group) == candidates.end())
          candidates.push_back(group);
    std::sort(candidates.rbegin(), candidates.rend());
    deepest_first(candidates);
    if (options_.stitch && left_to_reduction(n, form, reads, candidates)) {
      views_.read_through(n);
      for (const Read& read : reads)
        explain(
            read.value, n, Scheme::kLocal,
            "light, and larger than what it is made of: the reduction that reads it computes it");
      return;
    }
    // As it is first, in every group; only then by other coordinates.
    const size_t known = out_.edges.size();
    for (const bool adapted : {false, true}) {
      if (!options_.stitch || (adapted && !options_.adapt)) break;
      out_.edges.resize(known);
      for (int candidate : candidates) {
        std::string why;
        if (join(n, output, form, scratch, reads, candidate, adapted, why)) return;
        for (const Read& read : reads)
          for (int group : groups_behind(read.value))
            if (group == candidate) explain(read.value, n, Scheme::kGlobal, why);
      }
    }
    if (options_.stitch && left_to_readers(n, form, reads)) {
      views_.read_through(n);
      for (const Read& read : reads)
        explain(read.value, n, Scheme::kLocal,
                "light, and read about once: its readers compute it");
      return;
    }
    Draft draft;
    draft.group.nodes = {};
    Body& body = draft.group.body;
    body.domain = form.domain;
    for (size_t d = 0; d < form.domain.size(); ++d)
      body.exprs.coord(static_cast<int>(d), form.domain[d]);
    draft.is_column.assign(form.domain.size(), false);
    out_.drafts.push_back(std::move(draft));
    std::vector<ExprId> coords;
    Draft& made = out_.drafts.back();
    for (size_t d = 0; d < form.domain.size(); ++d)
      coords.push_back(made.group.body.exprs.coord(static_cast<int>(d), form.domain[d]));
    std::string why;
    const bool ok =
        enter(n, output, form, coords, static_cast<int>(out_.drafts.size()) - 1, false, why);
    CHECK(ok, "'{}' cannot begin a group: {}", graph_.node(n).name, why);
    (void)out;
  }

  /// A light node that readers can compute as they read.
  bool can_be_left(NodeId n, const Loop& form, const std::vector<Read>& reads) const {
    constexpr size_t kMostReads = 6;
    constexpr int kMostExprs = 48;
    const graph::Node& node = graph_.node(n);
    const Kind kind = ops::row(node.op).kind;
    if ((kind != Kind::kMap && kind != Kind::kMove) || node.outputs.size() != 1) return false;
    const ValueId out = node.outputs[0];
    if (form.combine != Combine::kNone || reads.size() > kMostReads ||
        form.exprs.size() > kMostExprs)
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
  /// of what it is made of.
  bool left_to_reduction(NodeId n, const Loop& form, const std::vector<Read>& reads,
                         const std::vector<int>& candidates) const {
    if (!can_be_left(n, form, reads)) return false;
    const ValueId out = graph_.node(n).outputs[0];
    const std::vector<NodeId> users = graph_.users(out);
    if (users.size() != 1 || !views_.loop(users[0], 0) ||
        views_.loop(users[0], 0)->combine == Combine::kNone)
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
  bool left_to_readers(NodeId n, const Loop& form, const std::vector<Read>& reads) const {
    constexpr double kMostAgain = 16384;  // elements computed again; a phase costs more
    if (!can_be_left(n, form, reads)) return false;
    const ValueId out = graph_.node(n).outputs[0];
    const auto count = static_cast<double>(graph_.type(out).count());
    const std::optional<double> read = elements_read(out);
    return read && *read - count <= std::max(kMostAgain, 0.05 * count);
  }
  static bool is_light(Scalar scalar) {
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
  std::optional<double> elements_read(ValueId value) const {
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
          // A copy into a concatenation: it walks its own elements, whoever reads them there.
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

  /// The reads of a loop, through views, with coordinates over the loop's domain.
  void collect(NodeId n, const Loop& form, Exprs& scratch, std::vector<Read>& reads) {
    std::vector<ExprId> coords;
    for (size_t d = 0; d < form.domain.size(); ++d)
      coords.push_back(scratch.coord(static_cast<int>(d), form.domain[d]));
    auto leaf = [&](ValueId value, DType dtype, std::vector<ExprId> at, ExprId guard,
                    ExprId otherwise) {
      reads.push_back({value, at});
      return scratch.load(static_cast<int>(reads.size()), dtype, std::move(at), guard, otherwise);
    };
    scratch.import(
        form.exprs, form.body, coords,
        [&](int slot, DType dtype, std::vector<ExprId> at, ExprId guard, ExprId otherwise) {
          return views_.read(scratch, graph_.node(n).inputs[slot], dtype, std::move(at), guard,
                             otherwise, leaf);
        });
  }

  // ---- joining -----------------------------------------------------------------------------------------------------

  bool join(NodeId n, int output, const Loop& form, const Exprs& scratch,
            const std::vector<Read>& reads, int target, bool adapted, std::string& why) {
    if (!may_join(form, reads, target, why)) return false;
    if (adapted && join_adapted(n, output, form, scratch, reads, target, why)) return true;
    return why.empty() && join_as_it_is(n, output, form, scratch, reads, target,
                                        why);  // where it failed before, for the reason
  }
  bool may_join(const Loop& form, const std::vector<Read>& reads, int target,
                std::string& why) const {
    const Draft& draft = out_.drafts[target];
    if (calls_op(draft.group.kind)) {
      why = "the producer has no loop form";
      return false;
    }
    if (draft.group.kind == GroupKind::kProduct && draft.group.product.parts > 1 &&
        !parts_meet(device_, strategy_, rows_of(draft), draft.group.product.n[0].extent,
                    draft.group.product.parts)) {
      why = "what follows a sum of parts is its reader's";
      return false;
    }
    const bool reduces = form.combine != Combine::kNone;
    for (const Read& read : reads) {
      if (writes_piece_of(target, read.value)) {
        why = "it reads a concatenation of which the group stores a piece";
        return false;
      }
      if (draft.members.count(read.value) == 0) continue;
      if ((reduces && made_of_demoted_.count(read.value)) ||
          demoted_.fully.count(graph_.value(read.value).producer)) {
        why = "its row has no place in fast memory";
        return false;
      }
    }
    if (draft.anchored && reduces) {
      why = "a reduction over a tile's row needs the whole row";
      return false;
    }
    if (element_count(form.domain) == 0) {
      why = "empty";
      return false;
    }
    for (const Read& read : reads) {
      for (int group : groups_behind(read.value)) {
        if (group != target && reaches(group, target)) {
          why = "another input is computed after the group: a cycle";
          return false;
        }
      }
    }
    if (static_cast<int>(draft.group.body.operands.size()) + static_cast<int>(reads.size()) + 2 >
        options_.max_operands) {
      why = "the body has enough operands";
      return false;
    }
    return true;
  }
  /// The reader reads members through a reshape: it takes the group's coordinates, or, where it
  /// reduces, a group without reductions takes its.
  bool join_adapted(NodeId n, int output, const Loop& form, const Exprs& scratch,
                    const std::vector<Read>& reads, int target, std::string& why) {
    Draft& draft = out_.drafts[target];
    if (draft.anchored) return false;
    for (const Read& read : reads) {
      const auto member = draft.members.find(read.value);
      if (member == draft.members.end()) continue;
      const Shape& shape = graph_.type(read.value).shape;
      if (form.combine == Combine::kNone) {
        if (const auto coords =
                reader_coordinates(draft, member->second, shape, form, scratch, read.at))
          return enter(n, output, form, *coords, target, false, why, true);
      } else if (draft.open) {
        const Draft before = draft;
        if (!take_coordinates(draft, graph_, views_, Member(member->second), shape, form, scratch,
                              read.at))
          continue;
        if (join_as_it_is(n, output, form, scratch, reads, target, why)) return true;
        draft = before;
        return false;
      }
    }
    return draft.open && join_wider(n, output, form, scratch, reads, target, why);
  }
  /// The reader spreads what a group without reductions gives: the group's points become its rows.
  bool join_wider(NodeId n, int output, const Loop& form, const Exprs& scratch,
                  const std::vector<Read>& reads, int target, std::string& why) {
    Draft& draft = out_.drafts[target];
    std::vector<std::pair<ValueId, std::vector<ExprId>>> taken;
    for (const Read& read : reads)
      if (draft.members.count(read.value)) taken.emplace_back(read.value, read.at);
    const Draft before = draft;
    if (!take_columns(draft, graph_, views_, device_, graph_.node(n).outputs[output], form, scratch,
                      taken))
      return false;
    if (join_as_it_is(n, output, form, scratch, reads, target, why)) return true;
    draft = before;
    return false;
  }
  bool join_as_it_is(NodeId n, int output, const Loop& form, const Exprs& scratch,
                     const std::vector<Read>& reads, int target, std::string& why) {
    Draft& draft = out_.drafts[target];
    const bool reduces = form.combine != Combine::kNone;
    // Which of the group's coordinates is each coordinate of the loop? Learnt from reads of members
    // at plain coordinates.
    const int rank = static_cast<int>(form.domain.size());
    Exprs& exprs = draft.group.body.exprs;
    const Shape& domain = draft.group.body.domain;
    std::vector<int> slot(rank, -1);
    for (const Read& read : reads) {
      auto member = draft.members.find(read.value);
      if (member == draft.members.end()) continue;
      for (size_t d = 0; d < read.at.size(); ++d) {
        const ops::Expr& mine = scratch[read.at[d]];
        const ops::Expr& theirs = exprs[member->second.at[d]];
        if (mine.scalar == Scalar::kCoord && theirs.scalar == Scalar::kCoord && slot[mine.slot] < 0)
          slot[mine.slot] = theirs.slot;
      }
    }
    // Coordinates that no member tells (a row value spread over columns): the unused slots of equal
    // extent, in order.
    std::vector<bool> used(domain.size(), false);
    for (int s : slot)
      if (s >= 0) {
        if (used[s]) {
          why = "two coordinates of the reader are one of the group";
          return false;
        }
        used[s] = true;
      }
    size_t next = 0;
    for (int d = 0; d < rank; ++d) {
      if (slot[d] >= 0 || form.domain[d] == 1) continue;
      while (next < domain.size() && (used[next] || domain[next] == 1)) ++next;
      if (next == domain.size() || domain[next] != form.domain[d]) {
        why = "the reader is larger than the group";
        return false;
      }
      slot[d] = static_cast<int>(next);
      used[next] = true;
    }
    bool all = true, all_rows = true, any_column = false;
    for (size_t s = 0; s < domain.size(); ++s) {
      if (domain[s] == 1) continue;
      all = all && used[s];
      if (draft.is_column[s])
        any_column = any_column || used[s];
      else
        all_rows = all_rows && used[s];
    }
    for (int d = 0; d < rank; ++d) {
      if (slot[d] >= 0 && domain[slot[d]] != form.domain[d]) {
        why = "extents differ";
        return false;
      }
    }
    const bool per_row = !draft.open && !draft.anchored && !all && all_rows && !any_column;
    if (!all && !per_row) {
      why = "the reader does not cover the group's rows";
      return false;
    }
    std::vector<bool> columns = draft.is_column;
    if (reduces) {
      if (!all) {
        why = "a reduction of row values crosses rows";
        return false;
      }
      std::vector<bool> wanted(domain.size(), false);
      for (int d = form.parallel; d < rank; ++d)
        if (slot[d] >= 0) wanted[slot[d]] = true;
      for (size_t s = 0; s < domain.size(); ++s)
        if (domain[s] == 1) wanted[s] = columns[s];
      if (!draft.open && wanted != columns) {
        why = "reduces other dimensions than the group's columns";
        return false;
      }
      columns = wanted;
    }
    std::vector<ExprId> coords;
    for (int d = 0; d < rank; ++d)
      coords.push_back(slot[d] < 0 ? exprs.integer(0) : exprs.coord(slot[d], domain[slot[d]]));
    const std::vector<bool> before = draft.is_column;
    const bool was_open = draft.open;
    if (reduces) draft.is_column = columns;
    if (enter(n, output, form, coords, target, per_row, why)) return true;
    draft.is_column = before;
    draft.open = was_open;
    return false;
  }

  /// Computes the node in a group at the given coordinates of its loop. False, with nothing changed
  /// that matters, when a member is read across rows. `adapted`: these are not the loop's own
  /// coordinates; then nothing may come to lie at computed places.
  bool enter(NodeId n, int output, const Loop& form, const std::vector<ExprId>& coords, int target,
             bool per_row, std::string& why, bool adapted = false) {
    Draft& draft = out_.drafts[target];
    Body& body = draft.group.body;
    Exprs& exprs = body.exprs;
    const bool reduces = form.combine != Combine::kNone;
    bool ok = true;
    std::vector<ValueId> outside;
    std::vector<Edge> edges;
    auto leaf = [&](ValueId value, DType dtype, std::vector<ExprId> at, ExprId guard,
                    ExprId otherwise) -> ExprId {
      auto it = draft.members.find(value);
      if (it == draft.members.end()) {
        if (adapted && !lies_affine(body, views_, value, at))
          ok = false,
          why = "by the group's coordinates another operand would lie at computed places";
        outside.push_back(value);
        return exprs.load(operand(draft, value), dtype, std::move(at), guard, otherwise);
      }
      const Member& member = it->second;
      if (at == member.at) {
        const bool row_to_columns = member.per_row && !per_row;
        edges.push_back({kind_of(value), n, row_to_columns ? Scheme::kRegional : Scheme::kLocal,
                         row_to_columns ? "one row's value, read by its columns"
                         : adapted      ? "element to element, by the group's coordinates"
                                        : "element to element"});
        return guard == kNoExpr ? member.value : exprs.select(guard, member.value, otherwise);
      }
      const bool in_row =
          !draft.anchored && !draft.open && !member.per_row && same_rows(draft, member, at);
      ok = false;
      why = in_row ? "reads another column of the same row"
                   : "reads elements that other rows' workers compute";
      return member.value;
    };
    auto load = [&](int slot, DType dtype, std::vector<ExprId> at, ExprId guard, ExprId otherwise) {
      return views_.read(exprs, graph_.node(n).inputs[slot], dtype, std::move(at), guard, otherwise,
                         leaf);
    };
    const ExprId value = exprs.import(form.exprs, form.body, coords, load);
    if (!ok) return false;

    const ValueId out = graph_.node(n).outputs[output];
    Member member;
    member.per_row = per_row || reduces;
    for (int d = 0; d < form.parallel; ++d) member.at.push_back(coords[d]);
    if (adapted && !lies_affine(body, views_, out, member.at)) {
      why = "by the group's coordinates it would be stored at computed places";
      return false;
    }
    if (reduces) {
      Step step{.kind = StepKind::kReduce,
                .expr = value,
                .combine = form.combine,
                .slot = body.row_values++,
                .node = n};
      const DType type = ops::compute_type(exprs[value].dtype);
      const ExprId acc = exprs.acc(type);
      step.finish =
          form.finish == kNoExpr ? acc : exprs.import(form.exprs, form.finish, coords, load, acc);
      const DType result = ops::compute_type(exprs[step.finish].dtype);
      body.row_types.push_back(result);
      member.value = exprs.load(kRowSlot + step.slot, result, {});
      draft.reduce_steps.push_back(step);
      if (draft.open) {
        draft.open = false;
        if (draft.group.nodes.empty()) {
          for (size_t d = form.parallel; d < form.domain.size(); ++d) draft.is_column[d] = true;
        }
      }
      if (draft.group.dominant == graph::kNone || !is_reduction(draft.group.dominant))
        draft.group.dominant = n;
    } else {
      member.value = value;
      if (draft.group.dominant == graph::kNone) draft.group.dominant = n;
    }
    const bool of_demoted =
        std::any_of(graph_.node(n).inputs.begin(), graph_.node(n).inputs.end(),
                    [&](ValueId v) { return draft.members.count(v) && made_of_demoted_.count(v); });
    if (demoted_.from_reductions.count(n) || (of_demoted && !member.per_row))
      made_of_demoted_.insert(out);
    draft.members[out] = std::move(member);
    if (draft.group.nodes.empty() || draft.group.nodes.back() != n) draft.group.nodes.push_back(n);
    for (ValueId v : outside) {
      read_from(draft, v);
      explain(v, n, Scheme::kGlobal, "computed by another group");
    }
    for (Edge& edge : edges)
      if (edge.from != graph::kNone) keep(std::move(edge));
    out_.group_of[out] = target;
    return true;
  }

  static int64_t rows_of(const Draft& draft) {
    int64_t rows = 1;
    for (size_t d = 0; d < draft.is_column.size(); ++d)
      if (!draft.is_column[d]) rows *= draft.group.body.domain[d];
    return rows;
  }
  bool is_reduction(NodeId n) const {
    const Loop* form = views_.loop(n, 0);
    return form && form->combine != Combine::kNone;
  }
  bool is_column_coord(const Draft& draft, ExprId id) const {
    const ops::Expr& expr = draft.group.body.exprs[id];
    return expr.scalar == Scalar::kCoord && draft.is_column[expr.slot];
  }
  bool same_rows(const Draft& draft, const Member& member, const std::vector<ExprId>& at) const {
    for (size_t d = 0; d < at.size(); ++d)
      if (!is_column_coord(draft, member.at[d]) && at[d] != member.at[d]) return false;
    return true;
  }
  NodeId kind_of(ValueId value) const { return graph_.value(value).producer; }

  void explain(ValueId value, NodeId to, Scheme scheme, std::string why) {
    const NodeId from = graph_.value(value).producer;
    if (from != graph::kNone) keep({from, to, scheme, std::move(why)});
  }
  /// One word an edge: what was decided last, and of one scheme the first reason.
  void keep(Edge edge) {
    const auto known = std::find_if(out_.edges.rbegin(), out_.edges.rend(), [&](const Edge& old) {
      return old.from == edge.from && old.to == edge.to;
    });
    if (known == out_.edges.rend())
      out_.edges.push_back(std::move(edge));
    else if (known->scheme != edge.scheme)
      *known = std::move(edge);
  }

  /// Topological order of drafts, by the earliest first node among those that may run.
  void sort() {
    const int count = static_cast<int>(out_.drafts.size());
    std::vector<int> waiting(count, 0);
    std::vector<std::vector<int>> readers(count);
    std::set<int> ready;
    for (int g = 0; g < count; ++g) {
      CHECK(!out_.drafts[g].after.count(g), "a group reads what it stores itself");
      waiting[g] = static_cast<int>(out_.drafts[g].after.size());
      for (int before : out_.drafts[g].after) readers[before].push_back(g);
      if (!waiting[g]) ready.insert(g);
    }
    while (!ready.empty()) {
      const int g = *ready.begin();
      ready.erase(ready.begin());
      out_.order.push_back(g);
      for (int reader : readers[g])
        if (--waiting[reader] == 0) ready.insert(reader);
    }
    CHECK(static_cast<int>(out_.order.size()) == count, "groups form a cycle");
  }

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

}  // namespace

bool walks_in_order(const Body& body, const std::vector<ExprId>& at, const Shape& shape) {
  const auto longer =
      [&](size_t slot) {  // the next dimension of the domain that has more than one element
        while (slot < body.domain.size() && body.domain[slot] == 1) ++slot;
        return slot;
      };
  size_t slot = longer(0);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    const ops::Expr& coordinate = body.exprs[at[d]];
    if (slot == body.domain.size() || body.domain[slot] != shape[d]) return false;
    if (coordinate.scalar != ops::Scalar::kCoord || coordinate.slot != static_cast<int>(slot))
      return false;
    slot = longer(slot + 1);
  }
  return slot == body.domain.size();
}

Grouping form_groups(const Graph& graph, Views& views, const machine::Machine& device,
                     const machine::Strategy& strategy, const Options& options,
                     const kernels::TileLibrary* tiles, const Demoted& demoted) {
  return Former(graph, views, device, strategy, options, tiles, demoted).run();
}

}  // namespace obelisk::stitch
