#include "obelisk/context.h"

#include "api/state.h"

namespace obelisk {
namespace {

Error usage(std::string message) { return {Code::kUsage, "api", std::move(message), "", ""}; }

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
  std::vector<void*> out;

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
};

Context::Context(Model model, int threads) {
  api::guarded([&] {
    state_.reset(new State{.model = std::move(model)});
    const Model::State& inside = *state_->model.state_;
    state_->context = api::value_or_raise(inside.executable->context(threads));
    state_->own_inputs.resize(inside.inputs.size()), state_->in.resize(inside.inputs.size());
    state_->own_outputs.resize(inside.outputs.size()), state_->out.resize(inside.outputs.size());
  });
}

Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;
Context::~Context() = default;

const Model& Context::model() const noexcept { return state_->model; }

std::span<std::byte> Context::input_bytes(const std::string& name) {
  return api::guarded([&]() -> std::span<std::byte> {
    const size_t k = api::find_port(state_->model.inputs(), name, "input");
    const Port& port = state_->model.inputs()[k];
    if (state_->in[k] && state_->own_inputs[k].empty())
      api::raise(
          usage(fmt::format("input '{}' is bound to the caller's memory: write it there", name)));
    return {state_->input(k), port.bytes};
  });
}

std::span<const std::byte> Context::output_bytes(const std::string& name) {
  return api::guarded([&]() -> std::span<const std::byte> {
    const size_t k = api::find_port(state_->model.outputs(), name, "output");
    return {state_->output(k), state_->model.outputs()[k].bytes};
  });
}

std::span<std::byte> Context::input_memory(const std::string& name, Element element) {
  check_element(state_->model.input(name), "input", element);
  return input_bytes(name);
}

std::span<const std::byte> Context::output_memory(const std::string& name, Element element) {
  check_element(state_->model.output(name), "output", element);
  return output_bytes(name);
}

void Context::bind_input(const std::string& name, std::span<const std::byte> memory) {
  const size_t k = api::find_port(state_->model.inputs(), name, "input");
  check_memory(state_->model.inputs()[k], "input", memory.data(), memory.size());
  state_->own_inputs[k] = Tensor();
  state_->in[k] = memory.data();
}

void Context::bind_output(const std::string& name, std::span<std::byte> memory) {
  const size_t k = api::find_port(state_->model.outputs(), name, "output");
  check_memory(state_->model.outputs()[k], "output", memory.data(), memory.size());
  state_->own_outputs[k] = Tensor();
  state_->out[k] = memory.data();
}

void Context::run() {
  api::guarded([&] {
    for (size_t k = 0; k < state_->in.size(); ++k) state_->input(k);
    for (size_t k = 0; k < state_->out.size(); ++k) state_->output(k);
    api::value_or_raise(state_->context->run(state_->in, state_->out));
  });
}

void Context::run_on(void* stream) {
  api::guarded([&] {
    const auto bound = [](std::span<const Port> ports, const char* way, const auto& memory, const std::vector<Tensor>& own) {
      for (size_t k = 0; k < ports.size(); ++k)
        if (ports[k].bytes > 0 && (!memory[k] || !own[k].empty()))
          api::raise(usage(fmt::format("{} '{}' is bound to no memory: a run on a stream wants the GPU's, by bind_{}", way, ports[k].name, way)));
    };
    if (state_->model.gpu() >= 0) {
      bound(state_->model.inputs(), "input", state_->in, state_->own_inputs);
      bound(state_->model.outputs(), "output", state_->out, state_->own_outputs);
    }
    api::value_or_raise(state_->context->run_on(state_->in, state_->out, stream));
  });
}

}  // namespace obelisk
