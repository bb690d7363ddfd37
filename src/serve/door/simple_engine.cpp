#include "serve/door/simple_engine.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "obelisk/obelisk.h"

namespace obelisk::serve::door {
namespace {

struct Loaded {
  ModelInfo info;
  std::shared_ptr<Context> context;
  uint64_t generation = 0;
};

Answer refusal(Outcome outcome, std::string why) {
  Answer answer;
  answer.outcome = outcome;
  answer.error = Error{Code::kUsage, "serve", std::move(why), "", ""};
  return answer;
}

class SimpleEngine final : public Engine {
 public:
  SimpleEngine() : runner_([this] { run(); }), loader_([this] { load(); }) {}
  ~SimpleEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    woken_.notify_all();
    runner_.join();
    loader_.join();
    for (Waiting& waiting : queue_) waiting.done(refusal(Outcome::kCancelled, "the engine stops"));
  }

  void add(ModelConfig config) override {
    const std::lock_guard lock(mutex_);
    if (!models_.contains(config.name)) models_[config.name].info.config = config;
    loads_.push_back(std::move(config));
    woken_.notify_all();
  }
  void remove(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    models_.erase(name);
  }
  std::vector<ModelInfo> models() const override {
    const std::lock_guard lock(mutex_);
    std::vector<ModelInfo> out;
    for (const auto& [name, model] : models_) out.push_back(model.info);
    return out;
  }
  std::optional<ModelInfo> model(const std::string& name) const override {
    const std::lock_guard lock(mutex_);
    const auto found = models_.find(name);
    if (found == models_.end()) return std::nullopt;
    return found->second.info;
  }

  RequestKey submit(Request request, Done done) override {
    std::unique_lock lock(mutex_);
    const auto found = models_.find(request.model);
    const auto refuse = [&](Outcome outcome, std::string why) -> RequestKey {
      lock.unlock();
      done(refusal(outcome, std::move(why)));
      return 0;
    };
    if (found == models_.end()) return refuse(Outcome::kNotFound, fmt::format("there is no model '{}'", request.model));
    ModelInfo& info = found->second.info;
    if (draining_ || info.state != ModelState::kReady) return refuse(Outcome::kNotReady, info.reason);
    if (std::string why = misfit(info, request); !why.empty()) return refuse(Outcome::kBadRequest, std::move(why));
    if (static_cast<int>(queue_.size()) >= info.config.queue_limit)
      return refuse(Outcome::kRejected, "Exceeds maximum queue size");
    if (!request.deadline) request.deadline = info.config.deadline;
    ++info.counts.waiting;
    queue_.push_back({++last_, std::move(request), std::move(done)});
    woken_.notify_all();
    return last_;
  }
  void cancel(RequestKey key) override {
    std::unique_lock lock(mutex_);
    for (auto one = queue_.begin(); one != queue_.end(); ++one)
      if (one->key == key) {
        Waiting waiting = std::move(*one);
        queue_.erase(one);
        if (const auto found = models_.find(waiting.request.model); found != models_.end())
          --found->second.info.counts.waiting, ++found->second.info.counts.cancelled;
        lock.unlock();
        return waiting.done(refusal(Outcome::kCancelled, "the caller went away"));
      }
  }
  void drain() override {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }

 private:
  struct Waiting {
    RequestKey key;
    Request request;
    Done done;
  };

  static std::string misfit(const ModelInfo& info, const Request& request) {
    for (const InputView& input : request.inputs) {
      const PortInfo* port = nullptr;
      for (const PortInfo& one : info.inputs)
        if (one.name == input.name) port = &one;
      if (!port) return fmt::format("the model has no input '{}'", input.name);
      bool fits = port->dtype == input.dtype && port->shape.size() == input.shape.size();
      for (size_t k = 0; fits && k < port->shape.size(); ++k) fits = port->shape[k] == input.shape[k] || port->shape[k] == -1;
      if (!fits)
        return fmt::format("input '{}': got {}{}, wanted {}{}", input.name, to_string(input.dtype), to_string(input.shape), to_string(port->dtype), to_string(port->shape));
    }
    for (const PortInfo& port : info.inputs) {
      bool given = false;
      for (const InputView& input : request.inputs) given |= input.name == port.name;
      if (!given) return fmt::format("input '{}' is missing", port.name);
    }
    for (const std::string& name : request.outputs) {
      bool known = false;
      for (const PortInfo& port : info.outputs) known |= port.name == name;
      if (!known) return fmt::format("the model has no output '{}'", name);
    }
    return "";
  }

  void load() {
    std::unique_lock lock(mutex_);
    while (true) {
      woken_.wait(lock, [&] { return stopping_ || !loads_.empty(); });
      if (stopping_) return;
      const ModelConfig config = std::move(loads_.front());
      loads_.pop_front();
      lock.unlock();
      Loaded loaded;
      loaded.info.config = config;
      try {
        CompileOptions options;
        options.dimensions = config.dimensions;
        if (!config.batch_dimension.empty()) options.dimensions[config.batch_dimension] = 1;
        options.target = config.target, options.precision = config.precision;
        const Model model = config.path.ends_with(".obk") ? Model::open(config.path) : Model::compile(config.path, options);
        loaded.context = std::make_shared<Context>(model, 1);
        const auto ports = [&](std::span<const Port> from, std::vector<PortInfo>& to) {
          for (const Port& port : from) {
            Shape shape = port.shape;
            if (!config.batch_dimension.empty() && !shape.empty() && shape[0] == 1) shape[0] = -1;
            to.push_back({port.name, static_cast<DType>(port.element), shape});
          }
        };
        ports(model.inputs(), loaded.info.inputs);
        ports(model.outputs(), loaded.info.outputs);
        loaded.info.memory_bytes = model.workspace_bytes();
        loaded.info.state = ModelState::kReady;
      } catch (const std::exception& why) {
        loaded.info.state = ModelState::kFailed;
        loaded.info.reason = why.what();
      }
      lock.lock();
      models_[config.name] = std::move(loaded);
    }
  }

  Answer answer(Loaded& model, const Request& request) {
    Answer out;
    int64_t rows = 1;
    for (size_t k = 0; k < model.info.inputs.size(); ++k)
      for (const InputView& input : request.inputs)
        if (input.name == model.info.inputs[k].name && !input.shape.empty() && model.info.inputs[k].shape[0] == -1) rows = input.shape[0];
    std::vector<Tensor> results;
    for (const PortInfo& port : model.info.outputs) {
      Shape shape = port.shape;
      if (!shape.empty() && shape[0] == -1) shape[0] = rows;
      results.push_back(Tensor::allocate({port.dtype, shape}));
    }
    for (int64_t row = 0; row < rows; ++row) {
      for (const InputView& input : request.inputs) {
        const auto to = model.context->input_bytes(input.name);
        memcpy(to.data(), input.bytes.data() + (input.bytes.size() > to.size() ? static_cast<size_t>(row) * to.size() : 0), to.size());
      }
      model.context->run();
      for (size_t k = 0; k < results.size(); ++k) {
        const auto from = model.context->output_bytes(model.info.outputs[k].name);
        auto* to = static_cast<std::byte*>(results[k].mutable_data());
        memcpy(to + (model.info.outputs[k].shape.empty() || model.info.outputs[k].shape[0] != -1 ? 0 : static_cast<size_t>(row) * from.size()), from.data(), from.size());
      }
    }
    const auto keep = std::make_shared<std::vector<Tensor>>(std::move(results));
    for (size_t k = 0; k < keep->size(); ++k) {
      const Tensor& tensor = (*keep)[k];
      const std::string& name = model.info.outputs[k].name;
      if (request.outputs.empty() || std::find(request.outputs.begin(), request.outputs.end(), name) != request.outputs.end())
        out.outputs.push_back({name, tensor.dtype(), tensor.shape(), {static_cast<const std::byte*>(tensor.data()), static_cast<size_t>(tensor.bytes())}});
    }
    out.keep = keep;
    model.info.counts.rows += static_cast<uint64_t>(rows);
    return out;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      woken_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      Waiting waiting = std::move(queue_.front());
      queue_.pop_front();
      const auto found = models_.find(waiting.request.model);
      if (found == models_.end()) {
        lock.unlock();
        waiting.done(refusal(Outcome::kNotFound, "the model was unloaded"));
        lock.lock();
        continue;
      }
      Loaded model = found->second;
      lock.unlock();
      const auto start = Clock::now();
      const auto queued = start - waiting.request.arrival;
      Answer made;
      const bool late = waiting.request.deadline && queued > *waiting.request.deadline;
      if (late) made = refusal(Outcome::kLate, fmt::format("it waited {} us", queued.count() / 1000));
      else
        try {
          made = answer(model, waiting.request);
        } catch (const std::exception& why) {
          made = refusal(Outcome::kFailed, why.what());
        }
      const auto ran = Clock::now() - start;
      if (waiting.request.trace) made.trace = Trace{"batch 1", 0, {}, 1, queued, queued + ran, waiting.request.deadline ? std::optional(*waiting.request.deadline - queued) : std::nullopt, "it was the first in line"};
      lock.lock();
      if (const auto again = models_.find(waiting.request.model); again != models_.end()) {
        ModelCounts& counts = again->second.info.counts;
        --counts.waiting;
        if (late) ++counts.late;
        else if (made.outcome == Outcome::kOk) ++counts.ok, ++counts.launches, ++counts.rows, counts.queued += queued, counts.ran += ran;
        else ++counts.failed;
      }
      lock.unlock();
      waiting.done(std::move(made));
      lock.lock();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable woken_;
  std::map<std::string, Loaded> models_;
  std::deque<ModelConfig> loads_;
  std::deque<Waiting> queue_;
  RequestKey last_ = 0;
  bool stopping_ = false, draining_ = false;
  std::thread runner_, loader_;
};

}  // namespace

std::unique_ptr<Engine> make_simple_engine() { return std::make_unique<SimpleEngine>(); }

}  // namespace obelisk::serve::door
