#include <algorithm>

#include "runtime/cuda/context.h"

namespace obelisk::runtime::cuda {

namespace {

constexpr size_t kMostInstances = 1024;
/// Where the table of several instances begins; before it is the context's own, of one.
constexpr uint64_t kTableAt = 256;
constexpr size_t kRecordAlign = 128;  // a tensor map in it wants 64

Error not_together(const Program& program, const std::string& why) {
  return {Code::kUsage, "runtime",
          fmt::format("runs of '{}' and others cannot share a launch: {}", program.name, why), "",
          "run them one by one"};
}

}  // namespace

/// Of a program of instances: the records of all its launches, as this context runs them, to the
/// GPU.
Status CudaContext::write_records(Handle stream, DevicePointer stamps) {
  std::vector<std::byte> all;
  std::vector<uint64_t> at;
  for (const Launch& launch : executable_->cut_.launches) {
    TRY(const std::vector<std::byte> record, record_of(launch, stamps));
    at.push_back(all.size());
    all.insert(all.end(), record.begin(), record.end());
    all.resize((all.size() + kRecordAlign - 1) / kRecordAlign * kRecordAlign);
  }
  if (!records_.at()) {
    record_at_ = std::move(at);
    TRY_STATUS(records_.reserve(static_cast<int64_t>(std::max<size_t>(all.size(), kRecordAlign)),
                                "the records of a program of instances"));
    TRY_STATUS(table_.reserve(static_cast<int64_t>(kTableAt + kMostInstances * 8),
                              "the table of instances"));
    const DevicePointer mine = records_.at();
    TRY_STATUS(copy_in(driver_, table_.at(), &mine, sizeof mine, "name an instance"));
  }
  if (all.empty()) return ok_status();
  return check(driver_.CopyToDeviceAsync(records_.at(), all.data(), all.size(), stream),
               "write the records of an instance");
}

ObkInstances CudaContext::instances_of(size_t launch, unsigned instances) const {
  if (!of_instances()) return {};
  return {.records = table_.at() + (instances > 1 ? kTableAt : 0), .at = record_at_[launch]};
}

/// Tells the GPU whose records the next launch of so many instances reads.
Status CudaContext::name_instances(std::span<CudaContext* const> contexts, Handle stream) {
  std::vector<DevicePointer> wanted;
  for (const CudaContext* each : contexts) wanted.push_back(each->records_.at());
  if (wanted == named_) return ok_status();
  TRY_STATUS(check(driver_.CopyToDeviceAsync(table_.at() + kTableAt, wanted.data(),
                                             wanted.size() * sizeof wanted[0], stream),
                   "name the instances"));
  named_ = std::move(wanted);
  return ok_status();
}

Result<std::vector<CudaContext*>> CudaContext::together(std::span<const SharedRun> runs) {
  CHECK(!runs.empty() && runs[0].context == this, "the first of the runs is not this context's");
  if (!of_instances())
    return not_together(program(), "it was loaded without LoadOptions::instances");
  if (runs.size() > kMostInstances)
    return not_together(program(), fmt::format("{} runs, {} at most", runs.size(), kMostInstances));
  std::vector<CudaContext*> contexts;
  for (const SharedRun& each : runs) {
    auto* const context = dynamic_cast<CudaContext*>(each.context);
    if (!context || context->executable_->code_ != executable_->code_ ||
        context->gpu_.index != gpu_.index)
      return not_together(
          program(),
          fmt::format("the code of run {}{} differs, or it is on another GPU", contexts.size(),
                      context ? ", '" + context->program().name + "'," : ""));
    if (std::find(contexts.begin(), contexts.end(), context) != contexts.end())
      return not_together(program(),
                          fmt::format("the context of run {} is there twice", contexts.size()));
    contexts.push_back(context);
    TRY_STATUS(context->admit(each.inputs, each.outputs));
  }
  if (mono() && static_cast<int64_t>(runs.size()) * program().sms > executable_->room_)
    return not_together(
        program(), fmt::format("{} of them with {} SMs each, the GPU has room for {}", runs.size(),
                               program().sms, executable_->room_));
  return contexts;
}

Status CudaContext::launch_together(std::span<CudaContext* const> contexts, Handle stream) {
  const auto count = static_cast<unsigned>(contexts.size());
  TRY_STATUS(name_instances(contexts, stream));
  Handle graph = nullptr;
  if (!mono()) {
    Handle& made = graphs_[count];
    if (!made) {
      TRY(made, make_graph(0, count));
    }
    graph = made;
  }
  return launch(stream, graph, 0, count);
}

/// Whose watchdog saw it says so; the GPU's context is lost to all.
Status CudaContext::failed_together(std::span<CudaContext* const> contexts, const Status& status) {
  Status told = status;
  if (status.ok()) return told;
  for (CudaContext* const each : contexts) {
    const bool saw = each->watch_ && each->watch_->hit;
    Status of_this = each->failed(status);
    if (saw) told = std::move(of_this);
  }
  return told;
}

Status CudaContext::run_together(std::span<const SharedRun> runs) {
  if (runs.size() == 1 && runs[0].context == this) return run(runs[0].inputs, runs[0].outputs);
  TRY(const std::vector<CudaContext*> contexts, together(runs));
  InContext here(gpu_);
  const auto whole = [&](Handle stream) -> Status {
    copies_.clear();
    for (size_t k = 0; k < runs.size(); ++k)
      TRY_STATUS(contexts[k]->take_inputs(runs[k].inputs, runs[k].outputs, copies_));
    TRY_STATUS(copy_inputs(copies_, stream));
    for (CudaContext* const each : contexts) TRY_STATUS(each->begin(stream));
    TRY_STATUS(launch_together(contexts, stream));
    for (CudaContext* const each : contexts) TRY_STATUS(each->end(stream, copies_));
    TRY_STATUS(copy_outputs(copies_, stream));
    TRY_STATUS(wait_for_stream(stream));
    for (size_t k = 0; k < runs.size(); ++k) contexts[k]->hand_out(runs[k].outputs);
    return ok_status();
  };
  return failed_together(contexts, on_stream(whole));
}

Status CudaContext::run_together_on(std::span<const SharedRun> runs, void* stream) {
  if (runs.size() == 1 && runs[0].context == this)
    return run_on(runs[0].inputs, runs[0].outputs, stream);
  TRY(const std::vector<CudaContext*> contexts, together(runs));
  InContext here(gpu_);
  const auto on = static_cast<Handle>(stream);
  TRY(const bool captured, is_captured(on));
  if (captured) return not_together(program(), "the stream is being captured");
  const auto whole = [&]() -> Status {
    for (size_t k = 0; k < runs.size(); ++k)
      TRY_STATUS(contexts[k]->name_ports(runs[k].inputs, runs[k].outputs));
    for (CudaContext* const each : contexts) TRY_STATUS(each->begin(on));
    TRY_STATUS(launch_together(contexts, on));
    for (CudaContext* const each : contexts) TRY_STATUS(each->end_on(on));
    return ok_status();
  };
  return failed_together(contexts, whole());
}

}  // namespace obelisk::runtime::cuda
