#include "obelisk/model.h"

#include <utility>

#include "api/state.h"
#include "base/temporary_folder.h"
#include "network.h"

namespace obelisk {

using api::guarded;
using api::raise;
using api::value_or_raise;

namespace api {

void raise(const Error& error) {
  throw Failure(static_cast<FailureKind>(error.code), error.message, error.node, error.hint,
                error.text());
}

size_t find_port(std::span<const Port> ports, const std::string& name, const char* way) {
  for (size_t k = 0; k < ports.size(); ++k)
    if (ports[k].name == name) return k;
  std::string all;
  for (const Port& port : ports) all += (all.empty() ? "" : ", ") + port.name;
  raise({Code::kUsage, "api", fmt::format("the model has no {} '{}'", way, name), "",
         fmt::format("its {}s: {}", way, all)});
}

}  // namespace api

namespace {

#define SAME(name) static_assert(static_cast<int>(Element::name) == static_cast<int>(DType::name))
SAME(f64);
SAME(f32);
SAME(f16);
SAME(bf16);
SAME(f8e4m3fn);
SAME(f8e4m3fnuz);
SAME(f8e5m2);
SAME(f8e5m2fnuz);
SAME(f8e8m0);
SAME(f4e2m1);
SAME(i64);
SAME(i32);
SAME(i16);
SAME(i8);
SAME(i4);
SAME(i2);
SAME(u64);
SAME(u32);
SAME(u16);
SAME(u8);
SAME(u4);
SAME(u2);
SAME(b1);
#undef SAME

std::vector<Port> ports_of(const std::vector<runtime::Port>& ports) {
  std::vector<Port> out;
  for (const runtime::Port& port : ports)
    out.push_back({port.name, static_cast<Element>(port.type.dtype), port.type.shape,
                   port.type.count(), static_cast<size_t>(port.type.bytes())});
  return out;
}

/// A stored or fed value that shapes depend on, in the type that the model gives it.
Tensor bound_value(const frontends::onnx::Model& model, const std::string& name,
                   const std::vector<int64_t>& values) {
  for (const auto& input : model.graph.inputs) {
    if (input.name != name) continue;
    const auto dtype = frontends::onnx::to_dtype(input.type.element);
    if (!dtype || !is_integer(*dtype)) break;
    const bool scalar = input.type.has_shape && input.type.shape.empty();
    if (scalar && values.size() != 1)
      raise({Code::kUsage, "api",
             fmt::format("input '{}' is one number, but {} were given", name, values.size())});
    Tensor tensor =
        Tensor::allocate({*dtype, scalar ? Shape{} : Shape{static_cast<int64_t>(values.size())}});
    for (size_t k = 0; k < values.size(); ++k) tensor.set_int(static_cast<int64_t>(k), values[k]);
    return tensor;
  }
  raise({Code::kUsage, "api", fmt::format("the model has no input '{}' of integers", name)});
}

/// Bytes of the caller's, aligned as a mapped file is.
Tensor copy_of(std::span<const std::byte> bytes) {
  Tensor copy = Tensor::allocate({DType::u8, {static_cast<int64_t>(bytes.size())}});
  std::copy(bytes.begin(), bytes.end(), copy.as_mutable<std::byte>());
  return copy;
}

compiler::Network read_network(const std::string& path) {
  return value_or_raise(compiler::open_network(path));
}

compiler::Network read_network(std::span<const std::byte> file, const CompileOptions& wanted) {
  const auto copy = std::make_shared<const Tensor>(copy_of(file));
  compiler::Network network;
  network.model = value_or_raise(
      frontends::onnx::read_model_bytes({copy->as<char>(), file.size()}, copy, wanted.folder,
                                        "model", {wanted.memory.begin(), wanted.memory.end()}));
  return network;
}

void bind_shapes(const compiler::Network& network, const CompileOptions& wanted,
                 frontends::ImportOptions& import) {
  if (!network.model && !wanted.in_place.empty())
    raise({Code::kUsage, "api", "in_place is for .onnx files", "",
           "a graph as text says it: out %4 \"y\" in_place_of \"x\""});
  if (!network.model) return;
  for (const auto& [name, extents] : wanted.shapes) {
    std::string text;
    for (int64_t extent : extents) text += (text.empty() ? "" : "x") + std::to_string(extent);
    value_or_raise(frontends::bind_shape(*network.model, name + "=" + text, import));
  }
  for (const auto& [name, extent] : wanted.dimensions)
    value_or_raise(
        frontends::bind_shape(*network.model, name + "=" + std::to_string(extent), import));
  for (const auto& [name, values] : wanted.values)
    import.bound_inputs[name] = bound_value(*network.model, name, values);
  import.in_place = wanted.in_place;
}

}  // namespace

std::string element_name(Element element) {
  return std::string(to_string(static_cast<DType>(element)));
}

void Model::State::describe() {
  const runtime::Program& program = executable->program();
  inputs = ports_of(program.inputs), outputs = ports_of(program.outputs);
  for (size_t k = 0; k < outputs.size(); ++k) {
    const runtime::Port& port = program.outputs[k];
    if (port.in_place_of < 0) continue;
    outputs[k].in_place_of = inputs[static_cast<size_t>(port.in_place_of)].name;
    outputs[k].updates = port.written_in_place();
  }
  for (const runtime::CustomRecord& custom : program.customs)
    slow_ops.push_back(fmt::format("{} '{}'", ops::to_string(custom.op), custom.name));
  if (!tail) return;
  slow_ops.push_back(tail->first() + " and what reads it, on the host");
  const std::vector<Port> made = std::exchange(outputs, {});
  for (const auto& output : tail->outputs()) {
    if (output.head >= 0)
      outputs.push_back(made[static_cast<size_t>(output.head)]);
    else
      outputs.push_back(
          {output.name, static_cast<Element>(output.type.dtype), output.type.shape, 0, 0});
    outputs.back().name = output.name;
  }
}

namespace {

/// A network, compiled; and the GPU that it was compiled for.
std::pair<compiler::Compilation, compiler::FoundMachine> compiled(const compiler::Network& network,
                                                                  const CompileOptions& wanted) {
  compiler::Options options;
  const compiler::FoundMachine machine =
      value_or_raise(compiler::find_machine(wanted.target, wanted.virtual_sms, wanted.threads));
  options.target = machine.target;
  options.granularity = value_or_raise(compiler::parse_wanted_granularity(wanted.granularity));
  options.dispatch.policy = wanted.dispatch;
  options.dispatch.search_seconds = wanted.search_seconds;
  options.load.gpu = machine.gpu, options.load.memory_limit = Bytes{wanted.memory_limit};
  options.load.watchdog = wanted.watchdog;
  options.batch_invariant = wanted.batch_invariant;
  const auto precision = passes::parse_precision(wanted.precision);
  if (!precision)
    raise(Error{Code::kUsage, "api", fmt::format("there is no precision '{}'", wanted.precision),
                "", "keep, fp32, tf32, fp16 or bf16"});
  options.passes.precision = *precision;
  options.threads = wanted.threads;
  options.sms = machine.sms;
  options.verify = wanted.verify;
  if (wanted.verify_seconds > 0) options.verification.seconds = wanted.verify_seconds;
  options.load.compiler = wanted.compiler, options.load.cache_dir = wanted.cache;
  options.interrupted = wanted.interrupted;
  options.host_tail = wanted.host_tail;
  if (wanted.progress)
    options.progress = [&](std::string_view step, double done) {
      wanted.progress(std::string(step), done);
    };
  bind_shapes(network, wanted, options.import);
  compiler::Compilation made;
  if (Status status = compiler::compile(network, options, made); !status.ok())
    raise(compiler::with_cause(status.error(), made.import_report));
  return {std::move(made), machine};
}

}  // namespace

std::shared_ptr<Model::State> Model::State::of(compiler::Compilation made, int gpu, bool verified) {
  auto state = std::make_shared<State>();
  state->executable = made.executable;
  state->tail = made.tail;
  state->gpu = made.executable->device() ? gpu : -1;
  state->graph = std::move(made.graph);
  if (const auto& found = made.verification; found && !found->rows.empty())
    state->verification = Verification{found->max_abs,  found->max_rel, found->tolerance,
                                       found->rounding, found->rows,    found->before};
  else if (found)
    state->unverified = found->why_not;
  else
    state->unverified = verified ? "there is no GPU here to run it on" : "verify = false";
  state->describe();
  return state;
}

Model Model::compile(const std::string& path, const CompileOptions& wanted) {
  return guarded([&] {
    auto [made, machine] = compiled(read_network(path), wanted);
    return Model(State::of(std::move(made), machine.gpu, wanted.verify));
  });
}

Model Model::compile(std::span<const std::byte> file, const CompileOptions& wanted) {
  return guarded([&] {
    auto [made, machine] = compiled(read_network(file, wanted), wanted);
    return Model(State::of(std::move(made), machine.gpu, wanted.verify));
  });
}

std::shared_ptr<Model::State> Model::State::of(runtime::Compiled file, const OpenOptions& wanted) {
  auto state = std::make_shared<State>();
  state->file = std::move(file);
  if (!wanted.portable) {
    runtime::LoadOptions load;
    load.compiler = wanted.compiler, load.cache_dir = wanted.cache;
    load.gpu = wanted.gpu, load.memory_limit = Bytes{wanted.memory_limit},
    load.watchdog = wanted.watchdog;
    state->executable = value_or_raise(runtime::load(state->file->program, load));
    if (!state->file->verified.empty())
      state->verification = Verification{.rows = state->file->verified};
    else
      state->unverified = "the file was compiled without";
  } else {
    state->unverified = "it was compiled again, from the file's graph";
    compiler::Network network;
    network.graph = value_or_raise(state->file->graph());
    compiler::Options options;
    options.target = state->file->program->target, options.sms = state->file->program->sms;
    if (state->file->program->on_gpu()) options.granularity = state->file->program->granularity;
    options.load.gpu = wanted.gpu, options.load.memory_limit = Bytes{wanted.memory_limit};
    options.load.watchdog = wanted.watchdog;
    options.verify = false;
    if (const auto kept = passes::parse_precision(state->file->program->precision))
      options.passes.precision = *kept;
    options.load.compiler = wanted.compiler, options.load.cache_dir = wanted.cache;
    compiler::Compilation made;
    if (Status status = compiler::compile(network, options, made); !status.ok())
      raise(status.error());
    state->executable = made.executable;
    state->graph = std::move(made.graph);
  }
  if (state->executable->device()) state->gpu = wanted.gpu;
  state->describe();
  return state;
}

Model Model::open(const std::string& path, const OpenOptions& wanted) {
  return guarded([&] {
    return Model(State::of(value_or_raise(runtime::open_obk(path, wanted.portable)), wanted));
  });
}

Model Model::open(std::span<const std::byte> file, const OpenOptions& wanted) {
  return guarded([&] {
    const auto copy = std::make_shared<const Tensor>(copy_of(file));
    return Model(State::of(value_or_raise(runtime::parse_obk(copy->data(), file.size(), copy,
                                                             "compiled model", wanted.portable)),
                           wanted));
  });
}

std::vector<std::byte> Model::save() const {
  return guarded([&] {
    const TemporaryFolder folder = value_or_raise(TemporaryFolder::create());
    const std::string path = folder.path() + "/model.obk";
    save(path);
    const auto file = value_or_raise(MappedFile::open(path));
    return std::vector<std::byte>(file->data(), file->data() + file->size());
  });
}

void Model::save(const std::string& path) const {
  guarded([&] {
    if (state_->tail)
      raise({Code::kUnsupported, "api",
             fmt::format("{} runs on the host, which a compiled file has no place for",
                         state_->tail->first()),
             "", "keep the model's own file; what was compiled is in the cache"});
    const graph::Graph graph =
        state_->graph ? *state_->graph : value_or_raise(state_->file->graph());
    value_or_raise(runtime::write_obk(path, *state_->executable, graph,
                                      state_->verification ? state_->verification->rows : ""));
  });
}

const std::string& Model::name() const noexcept { return state_->executable->program().name; }
std::span<const Port> Model::inputs() const noexcept { return state_->inputs; }
std::span<const Port> Model::outputs() const noexcept { return state_->outputs; }
const Port& Model::input(const std::string& name) const {
  return state_->inputs[api::find_port(state_->inputs, name, "input")];
}
const Port& Model::output(const std::string& name) const {
  return state_->outputs[api::find_port(state_->outputs, name, "output")];
}
const std::string& Model::target() const noexcept { return state_->executable->program().target; }
int Model::gpu() const noexcept { return state_->gpu; }
int64_t Model::workspace_bytes() const noexcept {
  return state_->executable->program().arena.count;
}
const std::optional<Verification>& Model::verification() const noexcept {
  return state_->verification;
}
const std::string& Model::unverified() const noexcept { return state_->unverified; }
std::span<const std::string> Model::slow_ops() const noexcept { return state_->slow_ops; }

}  // namespace obelisk
