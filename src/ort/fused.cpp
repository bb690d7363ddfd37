#include "ort/fused.h"

#include <algorithm>
#include <cstring>

#include "ort/calls.h"

namespace obelisk::ort {
namespace {

constexpr size_t kMostPrograms = 64;  // of one node; the one that was used longest ago goes

[[noreturn]] void refuse(const std::string& text) {
  throw Failure(FailureKind::kUsage, text, "", "", text);
}

std::vector<size_t> places_of(const std::vector<std::string>& names,
                              const std::vector<std::string>& order) {
  std::vector<size_t> places;
  for (const std::string& name : names) {
    const auto found = std::find(order.begin(), order.end(), name);
    if (found == order.end()) refuse("the session has no value '" + name + "' for a fused node");
    places.push_back(static_cast<size_t>(found - order.begin()));
  }
  return places;
}

const Value* input_of(const Api& api, const KernelContext* session, size_t place) {
  return ask<const Value*>(api, api.KernelContext_GetInput, session, place);
}

std::vector<int64_t> shape_of(const Api& api, const Value* value) {
  auto* info = ask<TensorInfo*>(api, api.GetTensorTypeAndShape, value);
  std::vector<int64_t> shape(ask<size_t>(api, api.GetDimensionsCount, info));
  Answer* answer = shape.empty() ? nullptr : api.GetDimensions(info, shape.data(), shape.size());
  api.ReleaseTensorTypeAndShapeInfo(info);
  must(api, answer);
  return shape;
}

bool aligned(const void* memory, const Port& port) {
  const size_t element = port.count > 0 ? port.bytes / static_cast<size_t>(port.count) : 1;
  return element == 0 || reinterpret_cast<uintptr_t>(memory) % element == 0;
}

}  // namespace

Fused::Fused(Part part, const CompileOptions& options) : part_(std::move(part)), options_(options) {
  for (auto& [location, data] : part_.memory) {
    weights_.emplace_back(data.begin(), data.end());
    data = weights_.back();
  }
  options_.memory = part_.memory;
}

void Fused::compile() {
  Shapes shapes;
  for (const auto& [name, type] : part_.inputs) shapes.push_back(type.extents);
  program_for(shapes);
}

void Fused::set_order(std::vector<std::string> inputs, std::vector<std::string> outputs) {
  std::vector<std::string> names;
  for (const auto& [name, type] : part_.inputs) names.push_back(name);
  inputs_ = places_of(names, inputs), outputs_ = places_of(part_.outputs, outputs);
}

std::shared_ptr<Fused::Program> Fused::program_for(const Shapes& shapes) {
  std::lock_guard lock(mutex_);  // one compile at a time; the others find it
  const auto found = std::find_if(programs_.begin(), programs_.end(),
                                  [&](const auto& each) { return each.first == shapes; });
  if (found != programs_.end()) {
    programs_.splice(programs_.begin(), programs_, found);
    return found->second;
  }
  CompileOptions options = options_;
  for (size_t k = 0; k < shapes.size(); ++k) options.shapes[part_.inputs[k].first] = shapes[k];
  const std::span bytes(part_.model);
  auto program = std::make_shared<Program>(Model::compile(std::as_bytes(bytes), options));
  programs_.emplace_front(shapes, program);
  if (programs_.size() > kMostPrograms) programs_.pop_back();
  return program;
}

void Fused::compute(const Api& api, KernelContext* session) {
  Shapes shapes;
  for (size_t place : inputs_) shapes.push_back(shape_of(api, input_of(api, session, place)));
  const std::shared_ptr<Program> program = program_for(shapes);
  std::unique_ptr<Context> context;
  {
    std::lock_guard lock(program->mutex);
    if (!program->idle.empty()) context = std::move(program->idle.back()), program->idle.pop_back();
  }
  if (!context) context = std::make_unique<Context>(program->model, options_.threads);
  run(api, session, *program, *context);  // where that throws, the context goes
  std::lock_guard lock(program->mutex);
  program->idle.push_back(std::move(context));
}

void Fused::run(const Api& api, KernelContext* session, Program& program, Context& context) const {
  for (size_t k = 0; k < inputs_.size(); ++k) {
    const Port& port = program.model.input(part_.inputs[k].first);
    const Value* value = input_of(api, session, inputs_[k]);
    const auto* data =
        static_cast<const std::byte*>(ask<const void*>(api, api.GetTensorData, value));
    if (port.bytes == 0) continue;
    if (aligned(data, port)) {
      context.bind_input(port.name, {data, port.bytes});
    } else {
      context.unbind_input(port.name);
      memcpy(context.input_bytes(port.name).data(), data, port.bytes);
    }
  }
  std::vector<std::pair<const Port*, void*>> copied;
  for (size_t k = 0; k < outputs_.size(); ++k) {
    const Port& port = program.model.output(part_.outputs[k]);
    Value* value = ask<Value*>(api, api.KernelContext_GetOutput, session, outputs_[k],
                               port.shape.data(), port.shape.size());
    void* data = value ? ask<void*>(api, api.GetTensorMutableData, value) : nullptr;
    if (port.bytes == 0) continue;
    if (data && aligned(data, port)) {
      context.bind_output(port.name, {static_cast<std::byte*>(data), port.bytes});
      continue;
    }
    context.unbind_output(port.name);
    if (data) copied.emplace_back(&port, data);
  }
  context.run();
  for (const auto& [port, data] : copied)
    memcpy(data, context.output_bytes(port->name).data(), port->bytes);
}

}  // namespace obelisk::ort
