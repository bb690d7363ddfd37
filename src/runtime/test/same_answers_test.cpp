// The same bits everywhere: on 1, 2, 7 and 132 virtual SMs, on any number of threads, with delays
// between tasks and at barriers, from run to run; and a row's bits whatever batch it stands in.
#include <cstdlib>
#include <cstring>

#include "passes/passes.h"
#include "runtime/test/run_program.h"

namespace obelisk::runtime {
namespace {

using graph::Graph;
using graph::ValueId;
using ops::Attrs;
using ops::Op;
using Ints = std::vector<int64_t>;

/// A network whose inputs all begin with the batch, and so do its outputs.
class Maker {
 public:
  Maker(int64_t batch, DType dtype) : batch_(batch), dtype_(dtype) {}

  ValueId add(Op op, std::vector<ValueId> inputs, Attrs attrs = {}) {
    return graph_.must_add(op, std::move(inputs), std::move(attrs),
                           std::string(ops::to_string(op)));
  }
  ValueId ints(const Ints& values) { return graph_.add_constant(tensor_of(values)); }
  ValueId weights(const Shape& shape, double scale = 0.2) {
    std::mt19937 random(static_cast<unsigned>(seed_++));
    std::normal_distribution<double> normal(0, scale);
    Tensor tensor = Tensor::allocate({dtype_, shape});
    for (int64_t k = 0; k < tensor.count(); ++k) tensor.set_double(k, normal(random));
    return graph_.add_constant(std::move(tensor));
  }
  ValueId input(const std::string& name, Shape shape) {
    shape.insert(shape.begin(), batch_);
    return graph_.add_input(name, {dtype_, shape});
  }
  void output(ValueId value) {
    graph_.mark_output(value, fmt::format("y{}", graph_.outputs().size()));
  }
  int64_t batch() const { return batch_; }
  Graph take() { return std::move(graph_); }

 private:
  Graph graph_;
  int64_t batch_, seed_ = 1;
  DType dtype_;
};

/// Widths on both sides of what vectors, panels and tiles hold; depths on both sides of a block.
void products(Maker& m) {
  const int64_t depths[] = {1, 31, 64, 512, 513, 700};
  for (int64_t width : {1, 15, 16, 17, 48, 63, 64, 65, 80, 150}) {
    const int64_t depth = depths[static_cast<size_t>(width) % 6];
    const ValueId x = m.input(fmt::format("x{}", width), {depth});
    m.output(m.add(Op::Tanh, {m.add(Op::Add, {m.add(Op::MatMul, {x, m.weights({depth, width})}),
                                              m.weights({width})})}));
  }
}

/// What is summed, sought or mapped along a row, and maps whose rows end inside of a vector.
void rows(Maker& m) {
  for (int64_t width : {1, 7, 16, 33, 100, 700}) {
    const ValueId x = m.input(fmt::format("x{}", width), {width});
    const ValueId last = m.ints({-1});
    const ValueId norm = m.add(Op::LayerNormalization, {x, m.weights({width}), m.weights({width})},
                               Attrs().set("axis", int64_t{-1}));
    m.output(m.add(Op::Gelu, {norm}));
    m.output(m.add(Op::Softmax, {x}, Attrs().set("axis", int64_t{-1})));
    m.output(m.add(Op::LogSoftmax, {m.add(Op::Sigmoid, {x})}, Attrs().set("axis", int64_t{-1})));
    m.output(
        m.add(Op::ReduceMean, {m.add(Op::Exp, {x}), last}, Attrs().set("keepdims", int64_t{1})));
    m.output(m.add(Op::RMSNormalization, {m.add(Op::Erf, {x}), m.weights({width})},
                   Attrs().set("axis", int64_t{-1})));
  }
}

/// A block of a transformer, as exporters write it.
void block(Maker& m) {
  const int64_t tokens = 7, width = 72, heads = 3, inner = 200;
  const ValueId x = m.input("x", {tokens, width});
  const auto norm = [&](ValueId v) {
    return m.add(Op::LayerNormalization, {v, m.weights({width}), m.weights({width})},
                 Attrs().set("axis", int64_t{-1}));
  };
  const auto heads_of = [&](ValueId v) {
    const ValueId y = m.add(Op::MatMul, {v, m.weights({width, width})});
    const ValueId apart =
        m.add(Op::Reshape, {y, m.ints({m.batch(), tokens, heads, width / heads})});
    return m.add(Op::Transpose, {apart}, Attrs().set("perm", Ints{0, 2, 1, 3}));
  };
  const ValueId first = norm(x);
  ValueId y = m.add(Op::Attention, {heads_of(first), heads_of(first), heads_of(first)},
                    Attrs().set("is_causal", int64_t{1}));
  y = m.add(Op::Transpose, {y}, Attrs().set("perm", Ints{0, 2, 1, 3}));
  y = m.add(Op::Reshape, {y, m.ints({m.batch(), tokens, width})});
  const ValueId sum = m.add(Op::Add, {m.add(Op::MatMul, {y, m.weights({width, width})}), x});
  y = m.add(Op::Add,
            {m.add(Op::MatMul, {norm(sum), m.weights({width, inner})}), m.weights({inner})});
  m.output(
      m.add(Op::Add, {m.add(Op::MatMul, {m.add(Op::Gelu, {y}), m.weights({inner, width})}), sum}));
}

/// Two products of activations, with the softmax between written out.
void attention_in_parts(Maker& m) {
  for (const auto& [queries, keys, size] :
       {std::tuple{5, 9, 8}, std::tuple{17, 65, 33}, std::tuple{1, 130, 16}}) {
    const ValueId q = m.input(fmt::format("q{}", keys), {2, queries, size}),
                  k = m.input(fmt::format("k{}", keys), {2, keys, size});
    const ValueId v = m.input(fmt::format("v{}", keys), {2, keys, size});
    const ValueId transposed = m.add(Op::Transpose, {k}, Attrs().set("perm", Ints{0, 1, 3, 2}));
    const ValueId scores =
        m.add(Op::Softmax, {m.add(Op::MatMul, {q, transposed})}, Attrs().set("axis", int64_t{-1}));
    m.output(m.add(Op::MatMul, {scores, v}));
    m.output(m.add(Op::Attention, {q, k, v}));
  }
}

/// Convolutions of all kinds, pooling, a classifier.
void image(Maker& m) {
  const ValueId x = m.input("x", {3, 15, 14});
  ValueId y = m.add(Op::Conv, {x, m.weights({70, 3, 3, 3}), m.weights({70})},
                    Attrs().set("pads", Ints{1, 1, 1, 1}).set("strides", Ints{2, 2}));
  y = m.add(Op::Relu, {y});
  const ValueId deep = m.add(Op::Conv, {y, m.weights({70, 1, 3, 3})},
                             Attrs().set("pads", Ints{1, 1, 1, 1}).set("group", int64_t{70}));
  y = m.add(Op::Add, {m.add(Op::Sigmoid, {deep}), y});
  y = m.add(Op::Conv, {y, m.weights({20, 35, 1, 1})}, Attrs().set("group", int64_t{2}));
  m.output(
      m.add(Op::MaxPool, {y}, Attrs().set("kernel_shape", Ints{3, 3}).set("strides", Ints{2, 2})));
  const ValueId wide =
      m.add(Op::Conv, {y, m.weights({33, 20, 5, 5})}, Attrs().set("pads", Ints{2, 2, 2, 2}));
  m.output(wide);
  const ValueId pooled =
      m.add(Op::Reshape, {m.add(Op::GlobalAveragePool, {wide}), m.ints({m.batch(), 33})});
  m.output(m.add(Op::Softmax, {m.add(Op::MatMul, {pooled, m.weights({33, 19})})},
                 Attrs().set("axis", int64_t{-1})));
}

struct Network {
  const char* name;
  void (*make)(Maker&);
  DType dtype = DType::f32;
  Graph graph(int64_t batch) const {
    Maker maker(batch, dtype);
    make(maker);
    Graph made = maker.take();
    for (const passes::Pass& pass : passes::table()) {
      auto next = pass.run(std::move(made));
      CHECK(next.ok(), "{}: {}", pass.name, next.error().text());
      made = std::move(*next);
    }
    return made;
  }
};
std::ostream& operator<<(std::ostream& out, const Network& network) { return out << network.name; }

const Network kNetworks[] = {{"products", products},
                             {"products_f64", products, DType::f64},
                             {"products_f16", products, DType::f16},
                             {"rows", rows},
                             {"rows_f16", rows, DType::f16},
                             {"block", block},
                             {"block_bf16", block, DType::bf16},
                             {"attention_in_parts", attention_in_parts},
                             {"image", image},
                             {"image_f16", image, DType::f16}};

std::shared_ptr<const Executable> compile(const Graph& graph, int sms) {
  const machine::Machine device = machine::cpu(sms);
  const stitch::Plan plan = stitch::plan(graph, device);
  const schedule::TaskGraph tasks = schedule::build(graph, plan, device);
  const Status sound = schedule::validate(graph, plan, tasks);
  CHECK(sound.ok(), "{}", sound.error().text());
  const Status shadow = schedule::shadow_run(graph, plan, tasks);
  CHECK(shadow.ok(), "{}", shadow.error().text());
  LoadOptions load;
  load.every_thread = true;
  auto executable = load_cpu(std::make_shared<Program>(assemble(
                                 graph, plan, tasks, codegen::emit(graph, plan, tasks), "cpu")),
                             load);
  CHECK(executable.ok(), "{}", executable.error().text());
  return *executable;
}

std::vector<Tensor> run(const Executable& executable, const std::vector<Tensor>& inputs,
                        int threads, int times = 1) {
  auto context = executable.context(threads);
  CHECK(context.ok());
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<Tensor> outputs;
  for (const Tensor& tensor : inputs) in.push_back(tensor.data());
  for (const Port& port : executable.program().outputs) {
    outputs.push_back(Tensor::allocate(port.type));
    memset(outputs.back().mutable_data(), 0xa5, outputs.back().bytes());
    out.push_back(outputs.back().mutable_data());
  }
  for (int time = 0; time < times; ++time) {
    const Status status = (*context)->run(in, out);
    CHECK(status.ok(), "{}", status.error().text());
  }
  return outputs;
}

std::vector<Tensor> some_inputs(const Graph& graph) {
  std::mt19937 random(7);
  std::vector<Tensor> inputs;
  for (ValueId v : graph.inputs()) inputs.push_back(random_tensor(graph.type(v), random));
  return inputs;
}

/// OBELISK_JITTER for the contexts made meanwhile.
struct Delays {
  explicit Delays(int seed) { setenv("OBELISK_JITTER", std::to_string(seed).c_str(), 1); }
  ~Delays() { unsetenv("OBELISK_JITTER"); }
};

class SameAnswers : public testing::TestWithParam<Network> {};

TEST_P(SameAnswers, OnAnyNumberOfSmsAndThreadsWithDelays) {
  const Graph graph = GetParam().graph(5);
  const std::vector<Tensor> inputs = some_inputs(graph);
  std::vector<Tensor> wanted;
  for (int sms : {1, 2, 7, 132}) {
    const auto executable = compile(graph, sms);
    for (int threads : {1, 2, 3, 8}) {
      if (threads > sms) continue;
      for (int seed : {0, 1, 2}) {
        std::optional<Delays> delays;
        if (seed > 0) delays.emplace(seed);
        const std::vector<Tensor> got = run(*executable, inputs, threads, 2);
        if (wanted.empty()) wanted = got;
        for (size_t o = 0; o < got.size(); ++o)
          ASSERT_EQ(0, memcmp(got[o].data(), wanted[o].data(), got[o].bytes()))
              << sms << " SMs, " << threads << " threads, delays " << seed << ": output " << o
              << " has other bits";
      }
    }
  }
}

/// Bytes of batch entry `row` of a tensor.
std::string_view entry(const Tensor& tensor, int64_t row) {
  const int64_t bytes = tensor.bytes() / tensor.shape()[0];
  return {static_cast<const char*>(tensor.data()) + row * bytes, static_cast<size_t>(bytes)};
}

TEST_P(SameAnswers, OfARowWhateverItsBatch) {
  const auto alone = compile(GetParam().graph(1), 1);
  for (int64_t batch : {2, 5, 16, 33, 65}) {
    const Graph graph = GetParam().graph(batch);
    const std::vector<Tensor> inputs = some_inputs(graph);
    const auto together = compile(graph, batch % 2 ? 7 : 1);
    const std::vector<Tensor> all = run(*together, inputs, 2);
    for (int64_t row = 0; row < batch; row += batch > 5 ? 7 : 1) {
      std::vector<Tensor> one;
      for (const Tensor& input : inputs) {
        Type type = input.type();
        type.shape[0] = 1;
        one.push_back(Tensor::allocate(type));
        memcpy(one.back().mutable_data(), entry(input, row).data(), one.back().bytes());
      }
      const std::vector<Tensor> wanted = run(*alone, one, 1);
      for (size_t o = 0; o < wanted.size(); ++o)
        EXPECT_EQ(entry(all[o], row), entry(wanted[o], 0))
            << "output " << o << ' ' << to_string(all[o].type()) << ": row " << row << " of "
            << batch << " has other bits than alone";
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, SameAnswers, testing::ValuesIn(kNetworks),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace obelisk::runtime
