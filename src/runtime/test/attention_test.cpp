// Attention as one group: Q, K and V wherever they lie, masks with strides, the answer where its
// reader wants it. Against the interpreter, on one, two and seven virtual SMs.
#include "runtime/test/run_program.h"

namespace obelisk::runtime {
namespace {

using graph::Graph;
using graph::ValueId;
using ops::Attrs;
using ops::Op;
using Ints = std::vector<int64_t>;

enum class From { kMerged, kSplitHeads, kHeads, kCache };
enum class Masked { kNo, kAdded, kAddedRow, kAddedHeads, kCondition };

struct Form {
  const char* name;
  From from = From::kMerged;
  int64_t batch = 2, heads = 3, kv_heads = 3, queries = 5, keys = 5, size = 8, value_size = 8;
  Masked masked = Masked::kNo;
  bool causal = false, joins = false, guarded = false, nan_if_masked = false;
  double softcap = 0;
  DType dtype = DType::f32;
};
std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.name; }

class Builder {
 public:
  explicit Builder(const Form& form) : f(form) {}

  Graph build() {
    Attrs attrs = Attrs().set("scale", 0.25);
    ValueId q, k, v;
    if (f.from == From::kMerged) {
      const Ints widths{f.heads * f.size, f.kv_heads * f.size, f.kv_heads * f.value_size};
      const int64_t total = widths[0] + widths[1] + widths[2];
      const ValueId x = made("qkv", {f.batch, f.queries, total});
      const auto split =
          graph_.add_node(Op::Split, {x, ints(widths)}, Attrs().set("axis", int64_t{2}), "", 3);
      q = graph_.node(*split).outputs[0], k = graph_.node(*split).outputs[1],
      v = graph_.node(*split).outputs[2];
      attrs.set("q_num_heads", f.heads).set("kv_num_heads", f.kv_heads);
    } else {
      q = operand("q", f.heads, f.queries, f.size);
      k = operand("k", f.kv_heads, f.keys, f.size);
      v = operand("v", f.kv_heads, f.keys, f.value_size);
    }
    std::vector<ValueId> inputs{q, k, v};
    if (f.masked != Masked::kNo) inputs.push_back(mask());
    if (f.causal) attrs.set("is_causal", int64_t{1});
    if (f.nan_if_masked) attrs.set("nan_if_masked", int64_t{1});
    if (f.softcap > 0) attrs.set("softcap", f.softcap);
    ValueId y = add(Op::Attention, inputs, attrs);
    if (f.guarded) y = add(Op::Where, {add(Op::IsNaN, {y}), number(0), y});
    if (f.joins && f.from != From::kMerged) {
      y = add(Op::Transpose, {y}, Attrs().set("perm", Ints{0, 2, 1, 3}));
      y = add(Op::Reshape, {y, ints({f.batch, f.queries, f.heads * f.value_size})});
    }
    if (f.joins) y = add(Op::MatMul, {y, weights({f.heads * f.value_size, 10})});
    graph_.mark_output(y, "y");
    return std::move(graph_);
  }

 private:
  ValueId add(Op op, std::vector<ValueId> inputs, Attrs attrs = {}) {
    return graph_.must_add(op, std::move(inputs), std::move(attrs),
                           std::string(ops::to_string(op)));
  }
  ValueId ints(const Ints& values) { return graph_.add_constant(tensor_of(values)); }
  ValueId number(double value) { return graph_.add_constant(tensor_of(f.dtype, {}, {value})); }
  ValueId weights(const Shape& shape) {
    std::mt19937 random(3);
    return graph_.add_constant(random_tensor({f.dtype, shape}, random));
  }
  /// Not an input itself: something that a group before stores.
  ValueId made(const std::string& name, const Shape& shape) {
    return add(Op::Tanh, {graph_.add_input(name, {f.dtype, shape})});
  }
  ValueId operand(const std::string& name, int64_t heads, int64_t length, int64_t size) {
    if (f.from == From::kHeads)
      return graph_.add_input(name, {f.dtype, {f.batch, heads, length, size}});
    if (f.from == From::kCache && name != "q") {
      const ValueId past =
          graph_.add_input(name + " past", {f.dtype, {f.batch, heads, length - 1, size}});
      return add(Op::Concat, {past, made(name, {f.batch, heads, 1, size})},
                 Attrs().set("axis", int64_t{2}));
    }
    const ValueId x = add(Op::Reshape, {made(name, {f.batch, length, heads * size}),
                                        ints({f.batch, length, heads, size})});
    return add(Op::Transpose, {x}, Attrs().set("perm", Ints{0, 2, 1, 3}));
  }
  ValueId mask() {
    switch (f.masked) {
      case Masked::kAdded:
        return graph_.add_input("mask", {DType::f32, {f.batch, 1, f.queries, f.keys}});
      case Masked::kAddedRow:
        return graph_.add_input("mask", {DType::f32, {f.batch, 1, 1, f.keys}});
      case Masked::kAddedHeads:
        return graph_.add_input("mask", {DType::f32, {f.heads, f.queries, f.keys}});
      default:
        return graph_.add_input("mask", {DType::b1, {f.queries, f.keys}});
    }
  }

  const Form f;
  Graph graph_;
};

class Attended : public testing::TestWithParam<Form> {};

TEST_P(Attended, OneGroupWithoutCopies) {
  const Form& form = GetParam();
  const Graph graph = Builder(form).build();
  const stitch::Plan plan = stitch::plan(graph, machine::cpu(2));
  int attended = 0, customs = 0;
  for (const stitch::Group& group : plan.groups) {
    attended += group.kind == stitch::GroupKind::kAttention;
    customs += group.kind == stitch::GroupKind::kCustom;
    for (graph::NodeId n : group.nodes) {  // every move is another way to read
      const Op op = graph.node(n).op;
      EXPECT_TRUE(op != Op::Transpose && op != Op::Reshape && op != Op::Split)
          << stitch::print(graph, plan);
    }
  }
  EXPECT_EQ(attended, 1);
  EXPECT_EQ(customs, 0);
  expect_same(graph, graph, form.name, form.dtype == DType::f32 ? 1e-4 : 4e-2);
}

INSTANTIATE_TEST_SUITE_P(Forms, Attended,
                         testing::Values(Form{.name = "merged"},
                                         Form{.name = "merged_joined",
                                              .heads = 4,
                                              .kv_heads = 4,
                                              .queries = 40,
                                              .keys = 40,
                                              .size = 16,
                                              .value_size = 16,
                                              .masked = Masked::kAddedRow,
                                              .joins = true},
                                         Form{.name = "merged_groups",
                                              .heads = 6,
                                              .kv_heads = 2,
                                              .masked = Masked::kAddedHeads,
                                              .softcap = 2},
                                         Form{.name = "odd_sizes",
                                              .from = From::kSplitHeads,
                                              .queries = 7,
                                              .keys = 13,
                                              .size = 5,
                                              .value_size = 9,
                                              .masked = Masked::kAdded,
                                              .joins = true},
                                         Form{.name = "causal",
                                              .from = From::kSplitHeads,
                                              .queries = 70,
                                              .keys = 70,
                                              .causal = true,
                                              .joins = true},
                                         Form{.name = "causal_few_keys",
                                              .from = From::kHeads,
                                              .queries = 20,
                                              .keys = 9,
                                              .causal = true},
                                         Form{.name = "condition_guarded",
                                              .from = From::kHeads,
                                              .masked = Masked::kCondition,
                                              .guarded = true,
                                              .nan_if_masked = true},
                                         Form{.name = "masked_rows_are_nan",
                                              .from = From::kHeads,
                                              .queries = 30,
                                              .keys = 2,
                                              .masked = Masked::kCondition,
                                              .nan_if_masked = true},
                                         Form{.name = "masked_rows_are_zeros",
                                              .from = From::kHeads,
                                              .queries = 30,
                                              .keys = 2,
                                              .masked = Masked::kCondition},
                                         Form{.name = "decode_groups",
                                              .from = From::kCache,
                                              .heads = 8,
                                              .kv_heads = 2,
                                              .queries = 1,
                                              .keys = 33,
                                              .joins = true},
                                         Form{.name = "decode_groups_masked",
                                              .from = From::kCache,
                                              .heads = 6,
                                              .kv_heads = 3,
                                              .queries = 1,
                                              .keys = 9,
                                              .masked = Masked::kAddedHeads},
                                         Form{.name = "decode_one_head",
                                              .from = From::kCache,
                                              .batch = 1,
                                              .heads = 1,
                                              .kv_heads = 1,
                                              .queries = 1,
                                              .keys = 300},
                                         Form{.name = "long_keys",
                                              .from = From::kSplitHeads,
                                              .batch = 1,
                                              .heads = 2,
                                              .kv_heads = 1,
                                              .queries = 33,
                                              .keys = 2000,
                                              .masked = Masked::kAddedRow},
                                         Form{.name = "size_one",
                                              .from = From::kHeads,
                                              .queries = 3,
                                              .keys = 4,
                                              .size = 1,
                                              .value_size = 1},
                                         Form{.name = "one_of_each",
                                              .from = From::kMerged,
                                              .batch = 1,
                                              .heads = 1,
                                              .kv_heads = 1,
                                              .queries = 1,
                                              .keys = 1,
                                              .size = 1,
                                              .value_size = 1},
                                         Form{.name = "f16",
                                              .from = From::kSplitHeads,
                                              .masked = Masked::kAdded,
                                              .joins = true,
                                              .dtype = DType::f16},
                                         Form{.name = "bf16_merged",
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .causal = true,
                                              .dtype = DType::bf16}),
                         [](const testing::TestParamInfo<Form>& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace obelisk::runtime
