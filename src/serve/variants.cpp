#include "serve/variants.h"

#include <time.h>

#include <algorithm>
#include <thread>

#include "serve/background.h"

namespace obelisk::serve {
namespace {

Error usage(std::string message, std::string hint = "") {
  return {Code::kUsage, "serve", std::move(message), "", std::move(hint)};
}

std::vector<PortInfo> ports_of(const std::vector<runtime::Port>& ports) {
  std::vector<PortInfo> out;
  for (const runtime::Port& port : ports)
    out.push_back({port.name, port.type.dtype, port.type.shape});
  return out;
}

void ports_of(const graph::Graph& graph, std::vector<PortInfo>& inputs,
              std::vector<PortInfo>& outputs) {
  for (const graph::ValueId v : graph.inputs())
    inputs.push_back({graph.value(v).name, graph.type(v).dtype, graph.type(v).shape});
  for (size_t k = 0; k < graph.outputs().size(); ++k) {
    const Type& type = graph.type(graph.outputs()[k]);
    outputs.push_back({graph.output_names()[k], type.dtype, type.shape});
  }
}

/// Whether rows of requests stand one behind the other: twice the batch is twice the first extent,
/// and nothing else.
Status rows_stack(const std::vector<PortInfo>& one, const std::vector<PortInfo>& two,
                  const char* way, const std::string& dimension) {
  for (size_t k = 0; k < one.size(); ++k) {
    Shape wanted = one[k].shape;
    if (!wanted.empty()) wanted[0] = 2;
    const bool begins = !one[k].shape.empty() && one[k].shape[0] == 1 && two[k].shape == wanted;
    if (begins) continue;
    return usage(
        fmt::format("{} '{}' is {} with {} = 1 and {} with 2: requests cannot be joined along it",
                    way, one[k].name, to_string(one[k].shape), dimension, to_string(two[k].shape)),
        "serve the model without a batch dimension");
  }
  return ok_status();
}

/// On a core, of the calling thread.
Time time_of_thread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + Time(time.tv_nsec);
}

}  // namespace

Result<std::unique_ptr<Programs>> Programs::open(const ModelConfig& config,
                                                 std::shared_ptr<const Device> device,
                                                 const ProgramOptions& options) {
  std::unique_ptr<Programs> made(new Programs);
  made->config_ = config, made->options_ = options, made->device_ = std::move(device);
  TRY(made->device_weights_, made->device_->weights());
  const std::string target = made->device_->target(), kind = target == "cpu" ? "cpu" : "cuda";
  if (!config.target.empty() && config.target != kind && config.target != target)
    return Error{
        Code::kUnsupported, "serve",
        fmt::format("the engine runs on the target '{}', not on '{}'", kind, config.target)};
  const bool joins = !config.batch_dimension.empty() && config.max_batch > 1;
  if (config.path.ends_with(".obk")) {
    TRY(made->compiled_, runtime::open_obk(config.path));
    if (made->compiled_->program->target != target)
      return Error{
          Code::kUnsupported, "serve",
          fmt::format("'{}' was compiled for {}", config.path, made->compiled_->program->target),
          "", "compile it with --target " + kind};
    if (joins)
      return usage("a compiled file has one batch, so requests cannot be joined",
                   "serve the model itself, or leave the batch dimension out");
    made->inputs_ = ports_of(made->compiled_->program->inputs),
    made->outputs_ = ports_of(made->compiled_->program->outputs);
    return made;
  }
  if (kind == "cuda" && config.batch_invariant && config.granularity == "auto")
    return usage(
        "programs of a batch-invariant model have one granularity: with 'auto' each batch and "
        "width would take the one that is quickest for it",
        "granularity stitch, mono or op");
  TRY(made->network_, compiler::open_network(config.path));
  if (!config.batch_dimension.empty()) {
    const std::vector<std::string> symbols = compiler::symbols_of(made->network_);
    if (std::find(symbols.begin(), symbols.end(), config.batch_dimension) == symbols.end()) {
      std::string all;
      for (const std::string& one : symbols) all += (all.empty() ? "" : ", ") + one;
      return usage(fmt::format("the model has no dimension '{}'", config.batch_dimension),
                   all.empty() ? "it has none with a name" : "its dimensions: " + all);
    }
  }
  TRY(const compiler::Compilation one, made->lower(1, made->device_->slots(), "import", {}));
  ports_of(one.graph, made->inputs_, made->outputs_);
  if (!joins) return made;
  TRY(const compiler::Compilation two, made->lower(2, made->device_->slots(), "import", {}));
  std::vector<PortInfo> inputs, outputs;
  ports_of(two.graph, inputs, outputs);
  TRY_STATUS(rows_stack(made->inputs_, inputs, "input", config.batch_dimension));
  TRY_STATUS(rows_stack(made->outputs_, outputs, "output", config.batch_dimension));
  for (auto* ports : {&made->inputs_, &made->outputs_})
    for (PortInfo& port : *ports) port.shape[0] = -1;
  made->joins_ = true;
  return made;
}

std::vector<int> Programs::batches() const {
  std::vector<int> out = {1};
  if (!joins_) return out;
  while (out.back() * 2 <= config_.max_batch) out.push_back(out.back() * 2);
  if (out.back() != config_.max_batch) out.push_back(config_.max_batch);
  return out;
}

std::vector<int> Programs::widths() const {
  if (compiled_ && !device_->any_width()) return {compiled_->program->sms};
  if (device_->any_width()) return {device_->slots()};
  std::vector<int> widths = device_->widths();
  if (!config_.batch_invariant) return widths;
  // A recurrent layer that a gang's registers hold, and fewer workers' do not, is computed another
  // way there.
  const int first = widths.front();
  std::erase_if(widths, [this](int width) {
    const auto machine = device_->machine(width);
    return machine.ok() && width < machine->gang;
  });
  return widths.empty() ? std::vector<int>{first} : widths;
}

Result<compiler::Compilation> Programs::lower(int batch, int width, const std::string& to,
                                              const std::function<bool()>& interrupted,
                                              const Admits& admits) const {
  compiler::Options options;
  options.import.dimensions = config_.dimensions;
  if (!config_.batch_dimension.empty()) options.import.dimensions[config_.batch_dimension] = batch;
  const auto precision = passes::parse_precision(config_.precision);
  if (!precision)
    return usage(fmt::format("there is no precision '{}'", config_.precision),
                 "keep, fp32, tf32, fp16 or bf16");
  options.passes.precision = *precision;
  options.dispatch.policy = "waves";  // measuring orders would disturb what the GPU serves
  if (device_->target() != "cpu") {
    TRY(options.granularity, compiler::parse_wanted_granularity(config_.granularity));
  }
  options.batch_invariant = config_.batch_invariant;
  options.load.compiler = options_.compiler, options.load.cache_dir = options_.cache;
  device_->aim(width, options);
  device_weights_->use(options.load);
  options.weights = weights_;
  options.verify = options_.verify && options_.verify_seconds > 0;
  options.verification.seconds = options_.verify_seconds;
  options.to = to, options.interrupted = interrupted, options.admits = admits;
  compiler::Compilation made;
  if (Status status = compiler::compile(network_, options, made); !status.ok())
    return compiler::with_cause(status.error(), made.import_report);
  return made;
}

Result<Program> Programs::compile(int batch, int width, const std::function<bool()>& interrupted,
                                  const Admits& admits) const {
  Program program{.batch = batch, .width = width};
  if (compiled_) {
    if (admits) TRY_STATUS(admits(*compiled_->program));
    compiler::Options options;
    device_->aim(width, options);
    runtime::LoadOptions& load = options.load;
    load.compiler = options_.compiler, load.cache_dir = options_.cache;
    load.interrupted = interrupted;
    device_weights_->use(load);
    TRY(program.executable, runtime::load(compiled_->program, load));
    TRY(const graph::Graph graph, compiled_->graph());
    program.sample = verify::generate_inputs(graph, 0);
    return program;
  }
  TRY(const compiler::Compilation made, lower(batch, width, "", interrupted, admits));
  program.executable = made.executable;
  program.sample = verify::generate_inputs(made.imported, 0);
  double flops = 0;
  for (const stitch::Group& group : made.plan.groups) flops += group.cost.flops.count;
  TRY(const machine::Machine machine, device_->machine(width));
  const double bytes = static_cast<double>(runtime::bytes_of_a_run(*made.program));
  program.bound = flops / machine.flops_per_sm > bytes / machine.bytes_per_sm ? Bound::kCompute
                                                                              : Bound::kMemory;
  return program;
}

void Programs::close() {
  network_ = {}, compiled_.reset();
  weights_ = std::make_shared<runtime::WeightPool>();
}

Result<std::unique_ptr<Seat>> Variant::take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<Seat> seat = std::move(free_.back());
      free_.pop_back();
      return seat;
    }
  }
  return device_->seat(*program_.executable, width_);
}

void Variant::give_back(std::unique_ptr<Seat> seat) {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(seat));
}

Variant::Sample Variant::sample() const {
  Sample sample;
  for (const Tensor& input : program_.sample) sample.in.push_back(input.data());
  for (const runtime::Port& port : program_.executable->program().outputs)
    sample.outputs.push_back(Tensor::allocate(port.type));
  for (Tensor& output : sample.outputs) sample.out.push_back(output.mutable_data());
  return sample;
}

Status Variant::prepare(int seats) {
  Sample sample = this->sample();
  std::vector<std::unique_ptr<Seat>> taken;
  Status status = ok_status();
  while (status.ok() && static_cast<int>(taken.size()) < seats) {
    auto seat = take();
    if (!seat.ok()) {
      if (seat.error().code != Code::kMemory) status = seat.error();
      break;
    }
    status = behind_requests([&] { return (*seat)->context->run(sample.in, sample.out); });
    taken.push_back(std::move(*seat));
  }
  for (std::unique_ptr<Seat>& seat : taken) give_back(std::move(seat));
  return status;
}

/// A run of one worker is timed by the thread's processor time, which does not count preemption, so
/// it can run at low priority. Runs of several workers, and of a GPU, are timed by the clock: which
/// worker takes which task differs from run to run.
Result<Measured> Variant::measure(Time budget) {
  TRY(std::unique_ptr<Seat> seat, take());
  Sample sample = this->sample();
  constexpr size_t kMost = 50;
  constexpr Time kCut{200'000};  // shorter ones are not cut. Chosen: ten times what waking a thread
                                 // takes, and so long that looking at the clock tells nothing
  const bool own = device_->target() == "cpu" && width_ == 1 &&
                   static_cast<unsigned>(device_->slots()) <= std::thread::hardware_concurrency();
  const auto now = [&] { return own ? time_of_thread() : Time(Clock::now().time_since_epoch()); };
  std::vector<Time> took, parts;
  Time sum{0}, part{0}, looked{0};
  runtime::GiveWay way;
  way.work = [&] {
    const Time at = now();
    part = std::max(part, at - looked), looked = at;
  };
  way.wanted = 1;
  const auto runs = [&]() -> Status {
    const auto begun = Clock::now();
    for (bool first = true, cut = false; took.size() < kMost; first = false) {
      const Time start = looked = now();
      part = Time(0);
      TRY_STATUS(seat->context->run(sample.in, sample.out));
      const Time end = now();
      if (first) {
        cut = end - start > kCut && seat->context->give_way(&way);
        continue;
      }
      if (cut) parts.push_back(std::max(part, end - looked));
      took.push_back(end - start), sum += took.back();
      if (Clock::now() - begun > budget) break;
    }
    return ok_status();
  };
  TRY_STATUS(own || budget == Time(0) ? behind_requests(runs) : runs());
  seat->context->give_way(nullptr);
  give_back(std::move(seat));
  const auto median = [](std::vector<Time>& times) {
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  };
  Measured measured{median(took), sum / static_cast<int64_t>(took.size())};
  if (!parts.empty() && measured.usual > kCut) measured.segment = median(parts);
  return measured;
}

}  // namespace obelisk::serve
