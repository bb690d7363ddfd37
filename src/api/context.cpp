#include "obelisk/context.h"

#include <string.h>

#include "api/state.h"

namespace obelisk {
namespace {

Error usage(std::string message, std::string hint = "") {
  return {Code::kUsage, "api", std::move(message), "", std::move(hint)};
}

/// Checks memory that a caller wants to be read or written.
void check_memory(const Port& port, const char* way, const void* data, size_t bytes) {
  if (bytes != port.bytes)
    api::raise(usage(fmt::format("{} '{}' takes {} bytes, but {} were bound", way, port.name,
                                 port.bytes, bytes)));
  const int width = std::max(bits(static_cast<DType>(port.element)) / 8, 1);
  if (bytes > 0 && reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(width) != 0)
    api::raise(usage(fmt::format("{} '{}' is bound to memory that is not aligned to its {} bytes",
                                 way, port.name, width)));
}

void check_element(const Port& port, const char* way, Element wanted) {
  if (port.element == wanted) return;
  api::raise(usage(fmt::format("{} '{}' is {}, not {}", way, port.name, element_name(port.element),
                               element_name(wanted))));
}

}  // namespace

struct Context::State {
  Model model;
  std::unique_ptr<runtime::Context> context;
  // empty where the caller's memory is bound, or nothing was asked for yet
  std::vector<Tensor> own_inputs, own_outputs;
  std::vector<const void*> in;
  std::vector<void*> out;    // by output of the program, as own_outputs
  std::vector<Tensor> late;  // by output of the model, of what the host makes; else empty

  std::byte* input(size_t k) {
    if (!in[k])
      own_inputs[k] = Tensor::allocate(model.state_->executable->program().inputs[k].type),
      in[k] = own_inputs[k].data();
    return static_cast<std::byte*>(const_cast<void*>(in[k]));
  }
  std::byte* output(size_t k) {
    if (!out[k])
      own_outputs[k] = Tensor::allocate(model.state_->executable->program().outputs[k].type),
      out[k] = own_outputs[k].mutable_data();
    return static_cast<std::byte*>(out[k]);
  }

  /// What the host makes of the program's outputs.
  void run_tail() {
    std::vector<Tensor> head;
    const auto& ports = model.state_->executable->program().outputs;
    for (size_t k = 0; k < ports.size(); ++k) {
      if (api::value_or_raise(context->on_device(out[k])))
        api::raise(usage(fmt::format("output '{}' is bound to the GPU's memory, but the host goes "
                                     "on with it",
                                     ports[k].name),
                         "bind the host's memory, or nothing"));
      head.push_back(Tensor::view(ports[k].type, out[k], nullptr));
    }
    late = api::value_or_raise(model.state_->tail->run(head));
    for (Tensor& each : late) {  // it may be a view of what the next run writes
      if (each.empty()) continue;
      Tensor copy = Tensor::allocate(each.type());
      if (each.bytes() > 0) memcpy(copy.mutable_data(), each.data(), each.bytes());
      each = std::move(copy);
    }
  }
};

Context::Context(Model model, int threads) {
  api::guarded([&] {
    state_.reset(new State{.model = std::move(model)});
    const Model::State& inside = *state_->model.state_;
    state_->context = api::value_or_raise(inside.executable->context(threads));
    state_->own_inputs.resize(inside.inputs.size()), state_->in.resize(inside.inputs.size());
    const size_t outputs = inside.executable->program().outputs.size();
    state_->own_outputs.resize(outputs), state_->out.resize(outputs);
    state_->late.resize(inside.outputs.size());
  });
}

Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;
Context::~Context() = default;

Context::State& Context::state() const {
  if (!state_) api::raise(usage("the context was moved from", "use the one that it was moved to"));
  return *state_;
}

const Model& Context::model() const { return state().model; }

std::span<std::byte> Context::input_bytes(const std::string& name) {
  return api::guarded([&]() -> std::span<std::byte> {
    const size_t k = api::find_port(state().model.inputs(), name, "input");
    const Port& port = state().model.inputs()[k];
    if (state().in[k] && state().own_inputs[k].empty())
      api::raise(
          usage(fmt::format("input '{}' is bound to the caller's memory: write it there", name)));
    return {state().input(k), port.bytes};
  });
}

std::span<const std::byte> Context::output_bytes(const std::string& name) {
  return api::guarded([&]() -> std::span<const std::byte> {
    State& inside = state();
    const size_t port = api::find_port(inside.model.outputs(), name, "output");
    const int head = inside.model.state_->head_of(port);
    if (head < 0) {
      const Tensor& made = inside.late[port];
      return {static_cast<const std::byte*>(made.data()), static_cast<size_t>(made.bytes())};
    }
    const auto k = static_cast<size_t>(head);
    const bool bound = inside.out[k] && inside.own_outputs[k].empty();
    if (bound && api::value_or_raise(inside.context->on_device(inside.out[k])))
      api::raise(
          usage(fmt::format(
                    "output '{}' is bound to the GPU's memory, which the host does not read", name),
                "copy it from there, or bind the host's memory"));
    return {inside.output(k), inside.model.outputs()[port].bytes};
  });
}

std::vector<int64_t> Context::output_shape(const std::string& name) {
  State& inside = state();
  const size_t port = api::find_port(inside.model.outputs(), name, "output");
  if (inside.model.state_->head_of(port) >= 0) return inside.model.outputs()[port].shape;
  if (inside.late[port].empty())
    api::raise(usage(fmt::format("the shape of output '{}' depends on data", name),
                     "run() first: it is known then"));
  return inside.late[port].shape();
}

std::span<std::byte> Context::input_memory(const std::string& name, Element element) {
  check_element(state().model.input(name), "input", element);
  return input_bytes(name);
}

std::span<const std::byte> Context::output_memory(const std::string& name, Element element) {
  check_element(state().model.output(name), "output", element);
  return output_bytes(name);
}

void Context::bind_input(const std::string& name, std::span<const std::byte> memory) {
  const size_t k = api::find_port(state().model.inputs(), name, "input");
  check_memory(state().model.inputs()[k], "input", memory.data(), memory.size());
  state().own_inputs[k] = Tensor();
  state().in[k] = memory.data();
}

void Context::bind_output(const std::string& name, std::span<std::byte> memory) {
  const size_t port = api::find_port(state().model.outputs(), name, "output");
  const int head = state().model.state_->head_of(port);
  if (head < 0)
    api::raise(usage(fmt::format("the size of output '{}' depends on data", name),
                     "read it with output() after run(): it cannot be bound"));
  const auto k = static_cast<size_t>(head);
  check_memory(state().model.outputs()[port], "output", memory.data(), memory.size());
  state().own_outputs[k] = Tensor();
  state().out[k] = memory.data();
}

void Context::unbind_input(const std::string& name) {
  const size_t k = api::find_port(state().model.inputs(), name, "input");
  if (state().own_inputs[k].empty()) state().in[k] = nullptr;
}

void Context::unbind_output(const std::string& name) {
  const size_t port = api::find_port(state().model.outputs(), name, "output");
  const int head = state().model.state_->head_of(port);
  if (head < 0) return;
  const auto k = static_cast<size_t>(head);
  if (state().own_outputs[k].empty()) state().out[k] = nullptr;
}

void Context::wait() {
  api::guarded([&] { api::value_or_raise(state().context->wait()); });
}

void Context::run() {
  api::guarded([&] {
    for (size_t k = 0; k < state().in.size(); ++k) state().input(k);
    for (size_t k = 0; k < state().out.size(); ++k) state().output(k);
    api::value_or_raise(state().context->run(state().in, state().out));
    if (state().model.state_->tail) state().run_tail();
  });
}

void Context::run_on(void* stream) {
  api::guarded([&] {
    if (const auto& tail = state().model.state_->tail)
      api::raise(
          {Code::kUnsupported, "api",
           fmt::format("{} runs on the host, which a stream does not wait for", tail->first()), "",
           "run()"});
    const auto bound = [](std::span<const Port> ports, const char* way, const auto& memory,
                          const std::vector<Tensor>& own) {
      for (size_t k = 0; k < ports.size(); ++k)
        if (ports[k].bytes > 0 && (!memory[k] || !own[k].empty()))
          api::raise(usage(fmt::format(
              "{} '{}' is bound to no memory: a run on a stream wants the GPU's, by bind_{}", way,
              ports[k].name, way)));
    };
    if (state().model.gpu() >= 0) {
      bound(state().model.inputs(), "input", state().in, state().own_inputs);
      bound(state().model.outputs(), "output", state().out, state().own_outputs);
    }
    api::value_or_raise(state().context->run_on(state().in, state().out, stream));
  });
}

}  // namespace obelisk
