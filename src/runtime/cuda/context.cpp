#include "runtime/cuda/context.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/parallel.h"
#include "runtime/cuda/streams.h"

namespace obelisk::runtime::cuda {

CudaContext::~CudaContext() {
  InContext here(gpu_);
  if (stream_) driver_.StreamSynchronize(stream_);
  if (under_way_ && last_stream_ != stream_ && ran_) driver_.EventSynchronize(ran_);
  if (graph_) driver_.GraphExecDestroy(graph_);
  if (plain_) driver_.GraphDestroy(plain_);
  for (Handle event : {ran_, from_, to_, sleep_})
    if (event) driver_.EventDestroy(event);
  if (stream_) driver_.StreamDestroy(stream_);
  if (watch_) driver_.MemFreeHost(watch_);
  if (ended_) driver_.MemFreeHost(ended_);
  for (const auto& [count, graph] : graphs_) driver_.GraphExecDestroy(graph);
  for (Memory* each : {&arena_, &counter_, &port_table_, &aside_, &records_, &table_})
    each->release();
  staged_in_.release(), staged_out_.release();
  --executable_->contexts_;
}

Status CudaContext::init() {
  const Program& p = program();
  const size_t ports = p.inputs.size() + p.outputs.size();
  ports_.assign(ports, 0), staged_.assign(ports, 0), bound_.assign(ports, 1);
  TRY_STATUS(check(driver_.StreamCreate(&stream_, kStreamNonBlocking), "make a stream"));
  TRY_STATUS(check(driver_.EventCreate(&ran_, kEventNoTiming), "make an event"));
  for (Handle* event : {&from_, &to_})
    TRY_STATUS(check(driver_.EventCreate(event, 0), "make an event"));
  if (executable_->options_.spin) {
    TRY_STATUS(
        check(driver_.EventCreate(&sleep_, kEventBlockingSync | kEventNoTiming), "make an event"));
    if (executable_->options_.spin->count() > 0 && driver_.StreamWriteValue) {
      void* host = nullptr;
      TRY_STATUS(check(driver_.MemHostAlloc(&host, sizeof(uint32_t), kHostMapped),
                       "memory for the end of a run"));
      ended_ = new (host) std::atomic<uint32_t>(0);
    }
  }
  TRY_STATUS(arena_.reserve(p.arena.count + executable_->cut_.map_bytes + 256, "the workspace"));
  // Words that gangs exchange are zero at first and last from run to run.
  TRY_STATUS(
      check(driver_.MemsetAsync(arena_.at(), 0, static_cast<size_t>(p.arena.count + 256), stream_),
            "clear the workspace"));
  TRY_STATUS(check(driver_.StreamSynchronize(stream_), "clear the workspace"));
  TRY_STATUS(make_maps(executable_->cut_, arena_.at()));
  const uint64_t zero[16] = {};
  TRY_STATUS(counter_.fill(zero, sizeof zero, "the barrier"));
  TRY_STATUS(port_table_.reserve(static_cast<int64_t>(ports * 8), "the table of ports"));
  if (executable_->options_.watchdog) {
    void* host = nullptr;
    const size_t bytes = sizeof(ObkWatch) + 2 * static_cast<size_t>(p.sms) * sizeof(uint32_t);
    TRY_STATUS(check(driver_.MemHostAlloc(&host, bytes, kHostMapped), "memory of the watchdog"));
    watch_ = static_cast<ObkWatch*>(memset(host, 0, bytes));
  }
  record_ = {.tasks = executable_->tasks_.at(),
             .first = executable_->first_.at(),
             .blocks = executable_->blocks_.at(),
             .arena = arena_.at(),
             .counter = counter_.at(),
             .watch = reinterpret_cast<DevicePointer>(watch_),
             .waves = std::max(p.waves, 1)};
  if (mono()) place_shared(executable_->cut_.launches[0], record_);
  if (!mono() || of_instances() || ports > obk::kInlinePorts) record_.ports = port_table_.at();
  if (of_instances()) TRY_STATUS(write_records(stream_, 0));
  if (!mono()) {
    TRY(graph_, make_graph(0));
    TRY_STATUS(check(driver_.GraphUpload(graph_, stream_), "upload the graph"));
  }
  // The first run may be on another stream.
  return check(driver_.StreamSynchronize(stream_), "prepare the first run");
}

/// Errors: kDevice, when the GPU's context fails, which says nothing about the pointer.
Result<unsigned> CudaContext::memory_of(const void* pointer) const {
  unsigned kind = 0;
  const int code =
      driver_.PointerAttribute(&kind, kPointerMemoryType, reinterpret_cast<DevicePointer>(pointer));
  constexpr int kUnknown = 1;  // to the driver: memory of the host
  if (code != 0 && code != kUnknown) return check(code, "ask where memory lies").error();
  return code == 0 ? kind : 0;
}

/// Memory for the host's arrays, when the first one comes. That of programs whose runs share
/// launches lies beside that of others.
Status CudaContext::reserve_staging() {
  if (staged_in_) return ok_status();
  const Program& p = program();
  offsets_.clear();
  Staging in, out;
  for (const auto* ports : {&p.inputs, &p.outputs}) {
    int64_t total = 0;
    for (const Port& port : *ports)
      offsets_.push_back(total),
          total += (port.type.bytes() + kStagedAlign - 1) / kStagedAlign * kStagedAlign;
    TRY((ports == &p.inputs ? in : out), Staging::take(gpu_, total, of_instances()));
  }
  staged_in_ = std::move(in), staged_out_ = std::move(out);
  zero_copy_in_ = zero_copy_inputs(p), zero_copy_out_ = zero_copy_outputs(p);
  for (size_t k = 0; k < offsets_.size(); ++k)
    staged_[k] = zero_copy(k) ? reinterpret_cast<DevicePointer>(pinned(k)) : staged_on_gpu(k);
  return ok_status();
}

/// Whether a kernel's work has an operand that the last run had elsewhere.
bool CudaContext::names_moved_ports(const Launch& launch) const {
  const auto& operands = program().works[launch.work].operands;
  return std::any_of(operands.begin(), operands.end(), [&](const Place& place) {
    auto port = static_cast<size_t>(place.index);
    if (place.kind == BufferKind::kOutput)
      port += program().inputs.size();
    else if (place.kind != BufferKind::kInput)
      return false;
    return ports_[port] != bound_[port];
  });
}

/// Tells the GPU where this run's ports are, when they are elsewhere than in the last.
Status CudaContext::bind(Handle stream) {
  if (under_way_ && last_stream_ != stream)
    TRY_STATUS(check(driver_.StreamWaitEvent(stream, ran_, 0), "wait for the run before"));
  last_stream_ = stream;
  if (record_.ports == 0) {
    std::copy(ports_.begin(), ports_.end(), record_.inline_ports);
  } else if (ports_ != bound_) {
    TRY_STATUS(
        check(driver_.CopyToDeviceAsync(port_table_.at(), ports_.data(), ports_.size() * 8, stream),
              "name the ports"));
    if (of_instances()) TRY_STATUS(write_records(stream, 0));
    for (const auto& [node, k] : grid_nodes_) {
      if (!names_moved_ports(executable_->cut_.launches[k])) continue;
      TRY(std::vector<std::byte> record, record_of(executable_->cut_.launches[k], 0));
      void* parameters[] = {record.data()};
      const KernelNode now = node_of(k, parameters);
      TRY_STATUS(check(driver_.GraphSetKernel(graph_, node, &now), "name a kernel's ports"));
    }
    bound_ = ports_;
  }
  return ok_status();
}

Status CudaContext::launch(Handle stream, Handle graph, DevicePointer stamps, unsigned instances) {
  if (graph) return check(driver_.GraphLaunch(graph, stream), "launch the graph");
  record_.stamps = stamps;
  ObkInstances named = instances_of(0, instances);
  void* parameters[] = {of_instances() ? static_cast<void*>(&named) : &record_};
  const Launch& all = executable_->cut_.launches[0];
  return check(
      driver_.LaunchCooperative(executable_->functions_[0], static_cast<unsigned>(all.tasks),
                                instances, 1, static_cast<unsigned>(all.threads), 1, 1,
                                static_cast<unsigned>(all.shared), stream, parameters),
      "launch the program");
}

/// Outputs in place of inputs: the input is where the output is, or the output is computed aside.
/// What has to be copied before and behind the launch for that is noted.
Status CudaContext::place_ports() {
  const Program& p = program();
  before_.clear(), behind_.clear();
  int64_t total = 0;
  for (const Port& port : p.outputs)
    if (port.in_place_of >= 0 && port.staged) total += (port.type.bytes() + 255) / 256 * 256;
  uint64_t at = 0;
  for (size_t k = 0; k < p.outputs.size(); ++k) {
    const Port& port = p.outputs[k];
    if (port.in_place_of < 0) continue;
    DevicePointer& old = ports_[static_cast<size_t>(port.in_place_of)];
    DevicePointer& now = ports_[p.inputs.size() + k];
    const auto bytes = static_cast<size_t>(port.type.bytes());
    if (!port.staged) {
      if (now != old && bytes) before_.push_back({now, old, bytes});
      old = now;
      continue;
    }
    const uint64_t mine = at;
    at += (bytes + 255) / 256 * 256;
    if (now != old || bytes == 0) continue;
    if (!aside_.at()) TRY_STATUS(aside_.reserve(total, "outputs in place of inputs"));
    behind_.push_back({now, aside_.at() + mine, bytes});
    now = aside_.at() + mine;
  }
  return ok_status();
}

Status CudaContext::transfer(std::vector<Transfer>& transfers, Handle stream) {
  for (const Transfer& each : transfers)
    TRY_STATUS(check(driver_.CopyAsync(each.to, each.from, each.bytes, stream),
                     "copy an output in place of an input"));
  return ok_status();
}

/// Outputs that are inputs, weights or other outputs.
Status CudaContext::copies(Handle stream) {
  const Program& p = program();
  for (const Program::Copy& copy : p.copies) {
    DevicePointer from = 0;
    switch (copy.from.kind) {
      case BufferKind::kInput:
        from = ports_[copy.from.index];
        break;
      case BufferKind::kOutput:
        from = ports_[p.inputs.size() + copy.from.index];
        break;
      case BufferKind::kWeight:
        from = executable_->weights_[static_cast<size_t>(copy.from.index)];
        break;
      case BufferKind::kArena:
        from = arena_.at() + static_cast<uint64_t>(copy.from.index);
        break;
    }
    const auto bytes = static_cast<size_t>(p.outputs[copy.output].type.bytes());
    if (bytes)
      TRY_STATUS(
          check(driver_.CopyAsync(ports_[p.inputs.size() + copy.output], from, bytes, stream),
                "copy an output"));
  }
  return ok_status();
}

/// Of one kernel with barriers: the tasks that keep the others waiting at the barrier that counts
/// up to `want`, a few of them; or nothing.
std::string CudaContext::late_tasks(uint64_t want) const {
  const Program& p = program();
  const auto sms = static_cast<uint64_t>(p.sms), barriers = static_cast<uint64_t>(p.waves - 1);
  if (!mono() || barriers == 0 || want < sms) return "";
  const uint64_t wave = (want / sms - 1) % barriers + 1;  // that the barrier lets begin
  const auto* at = reinterpret_cast<const uint32_t*>(watch_ + 1) + sms;  // when its clock ran out
  std::string text;
  int64_t first = 0;  // of an SM, among all tasks
  for (uint64_t sm = 0, found = 0; sm < sms && found < 4; ++sm) {
    const int64_t next = first + static_cast<int64_t>(p.lists[sm].size());
    const int64_t task = int64_t{at[sm]} - 1;
    if (task >= first && task < next) {
      const ObkTask& late = p.lists[sm][static_cast<size_t>(task - first)];
      if (late.wave < wave)
        text += fmt::format("{} SM {} is in task {} (wave {}, '{}')", found++ > 0 ? "," : ";", sm,
                            task, late.wave, p.works[late.work].label);
    }
    first = next;
  }
  return text;
}

/// An error of the device stays: later runs answer with it. Says what the watchdog saw.
Status CudaContext::failed(Status status) {
  if (status.ok() || status.error().code != Code::kDevice) return status;
  Error error = status.error();
  if (watch_ && watch_->hit) {
    const ObkWatch& w = *watch_;
    const ObkTask* task = mono() && w.task < executable_->cut_.tasks.size()
                              ? &executable_->cut_.tasks[w.task]
                              : nullptr;
    // Behind its last task an SM waits for the others, too: the next number is another SM's.
    size_t end = 0;
    for (size_t sm = 0; mono() && sm <= w.sm && sm < program().lists.size(); ++sm)
      end += program().lists[sm].size();
    const bool ended = mono() && w.kind == 1 && w.task >= end;
    error.message = fmt::format(
        "SM {} waits for {} at {:#x} {}{}: it wants {}, has {}{} ({})", w.sm,
        w.kind == 1   ? "the grid barrier"
        : w.kind == 4 ? "another member of its gang"
        : w.kind == 5 ? "a value that other SMs give"
        : w.kind == 6 ? "rows of a GEMM"
                      : "a page of weights",
        w.counter, ended ? "behind its last task" : fmt::format("before task {}", w.task),
        task && !ended
            ? fmt::format(" (wave {}, '{}')", task->wave, program().works[task->work].label)
            : std::string(),
        w.want, w.have, w.kind == 1 ? late_tasks(w.want) : "", error.message);
  }
  error.hint = "the GPU's context does not recover: start the program again";
  broken_ = error;
  return error;
}

/// Bodies read and write packs of 16 bytes.
Status CudaContext::packs_fit(std::span<const void* const> inputs, std::span<void* const> outputs) {
  const Program& p = program();
  for (size_t k = 0; k < ports_.size(); ++k) {
    const bool in = k < inputs.size();
    const void* pointer = in ? inputs[k] : outputs[k - inputs.size()];
    const Port& port = in ? p.inputs[k] : p.outputs[k - inputs.size()];
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (port.type.bytes() == 0 || address % 16 == 0) continue;
    InContext here(gpu_);
    TRY(const bool there, lies_on_device(pointer));
    if (!there) continue;
    return Error{
        Code::kUsage, "runtime",
        fmt::format("'{}' lies at {:#x} of the GPU's memory, which is no multiple of 16", port.name,
                    address),
        "", "give memory as the driver allocates it, or copy a part of a tensor to such first"};
  }
  return ok_status();
}

Status CudaContext::admit(std::span<const void* const> inputs, std::span<void* const> outputs) {
  const Program& p = program();
  CHECK(inputs.size() == p.inputs.size() && outputs.size() == p.outputs.size(),
        "{} inputs and {} outputs given, {} and {} needed", inputs.size(), outputs.size(),
        p.inputs.size(), p.outputs.size());
  if (broken_) return *broken_;
  return failed(packs_fit(inputs, outputs));
}

/// Until what the stream was given has ended. A word that the GPU writes behind it is polled: that
/// takes no lock of the driver, which others want for their launches.
Status CudaContext::wait_for_stream(Handle stream) {
  if (!sleep_) return check(driver_.StreamSynchronize(stream), "run the program");
  if (ended_) {
    const uint32_t wanted = ended_->load(std::memory_order_relaxed) + 1;
    const int code =
        driver_.StreamWriteValue(stream, reinterpret_cast<DevicePointer>(ended_), wanted, 0);
    // Where it is not supported the thread sleeps at once.
    if (code != kNotSupported) TRY_STATUS(check(code, "note the end of a run"));
    const auto until = std::chrono::steady_clock::now() + *executable_->options_.spin;
    constexpr int kPolls = 64;  // between looks at the clock
    while (code == 0 && std::chrono::steady_clock::now() < until)
      for (int k = 0; k < kPolls; ++k) {
        if (ended_->load(std::memory_order_acquire) == wanted) return ok_status();
        spin_pause();
      }
  }
  TRY_STATUS(check(driver_.EventRecord(sleep_, stream), "record an event"));
  return check(driver_.EventSynchronize(sleep_), "run the program");
}

Status CudaContext::take_inputs(std::span<const void* const> inputs, std::span<void* const> outputs,
                                std::vector<StagedCopy>& copies) {
  const Program& p = program();
  for (size_t k = 0; k < ports_.size(); ++k) {
    const bool in = k < inputs.size();
    const void* pointer = in ? inputs[k] : outputs[k - inputs.size()];
    const int64_t bytes = (in ? p.inputs[k] : p.outputs[k - inputs.size()]).type.bytes();
    if (!is_own(k, pointer)) {
      TRY(const unsigned memory, memory_of(pointer));
      if (memory == kMemoryDevice) {
        ports_[k] = reinterpret_cast<DevicePointer>(pointer);
        continue;
      }
      TRY_STATUS(reserve_staging());
      if (in && bytes > 0 && memory == kMemoryHost && !zero_copy(k)) {
        ports_[k] = staged_[k];
        auto* const host = static_cast<std::byte*>(const_cast<void*>(pointer));  // only read
        copies.push_back({host, staged_[k], static_cast<size_t>(bytes), true});
        continue;
      }
      if (in && bytes > 0) memcpy(pinned(k), pointer, static_cast<size_t>(bytes));
    }
    ports_[k] = staged_[k];
    if (in && bytes > 0 && !zero_copy(k))
      copies.push_back({pinned(k), staged_[k], static_cast<size_t>(bytes)});
  }
  return ok_status();
}

Status CudaContext::begin(Handle stream) {
  TRY_STATUS(place_ports());
  TRY_STATUS(bind(stream));
  return transfer(before_, stream);
}

Status CudaContext::end(Handle stream, std::vector<StagedCopy>& copies) {
  const Program& p = program();
  TRY_STATUS(this->copies(stream));
  TRY_STATUS(transfer(behind_, stream));
  for (size_t k = 0; k < p.outputs.size(); ++k) {
    const auto bytes = static_cast<size_t>(p.outputs[k].type.bytes());
    const size_t port = p.inputs.size() + k;
    if (ports_[port] == staged_[port] && bytes && !zero_copy(port))
      copies.push_back({pinned(port), staged_[port], bytes});
  }
  return ok_status();
}

Status CudaContext::copy_inputs(std::vector<StagedCopy>& copies, Handle stream) const {
  join_neighbours(copies);
  for (const StagedCopy& each : copies)
    TRY_STATUS(check(driver_.CopyToDeviceAsync(each.device, each.host, each.bytes, stream),
                     "copy inputs"));
  copies.clear();
  return ok_status();
}

Status CudaContext::copy_outputs(std::vector<StagedCopy>& copies, Handle stream) const {
  join_neighbours(copies);
  for (const StagedCopy& each : copies)
    TRY_STATUS(
        check(driver_.CopyToHostAsync(each.host, each.device, each.bytes, stream), "copy outputs"));
  copies.clear();
  return ok_status();
}

void CudaContext::hand_out(std::span<void* const> outputs) {
  const Program& p = program();
  for (size_t k = 0; k < outputs.size(); ++k) {
    const size_t port = p.inputs.size() + k;
    if (staged_out_ && ports_[port] == staged_[port] && !is_own(port, outputs[k]))
      memcpy(outputs[k], pinned(port), static_cast<size_t>(p.outputs[k].type.bytes()));
  }
  has_run_ = true, under_way_ = false;
}

Status CudaContext::run(std::span<const void* const> inputs, std::span<void* const> outputs) {
  TRY_STATUS(admit(inputs, outputs));
  InContext here(gpu_);
  const auto whole = [&](Handle stream) -> Status {
    copies_.clear();
    TRY_STATUS(take_inputs(inputs, outputs, copies_));
    TRY_STATUS(copy_inputs(copies_, stream));
    TRY_STATUS(begin(stream));
    TRY_STATUS(launch(stream, graph_, 0));
    TRY_STATUS(end(stream, copies_));
    TRY_STATUS(copy_outputs(copies_, stream));
    TRY_STATUS(wait_for_stream(stream));
    hand_out(outputs);
    return ok_status();
  };
  return failed(on_stream(whole));
}

Status CudaContext::on_stream(const std::function<Status(Handle stream)>& work) {
  const LoadOptions& options = executable_->options_;
  if (!options.pooled_streams) return work(stream_);
  TRY(const PooledStream pooled, PooledStream::take(gpu_, options.by_urgency ? urgency_ : 0));
  Status status = work(pooled.handle());
  // What an error left under way belongs to memory that may end with the context.
  if (!status.ok()) driver_.StreamSynchronize(pooled.handle());
  return status;
}

Status CudaContext::run_on(std::span<const void* const> inputs, std::span<void* const> outputs,
                           void* stream) {
  TRY_STATUS(admit(inputs, outputs));
  InContext here(gpu_);
  TRY_STATUS(name_ports(inputs, outputs));
  const auto on = static_cast<Handle>(stream);
  TRY(const bool captured, is_captured(on));
  if (captured) return executable_->capture(ports_, on);
  const auto whole = [&]() -> Status {
    TRY_STATUS(begin(on));
    TRY_STATUS(launch(on, graph_, 0));
    return end_on(on);
  };
  return failed(whole());
}

Status CudaContext::name_ports(std::span<const void* const> inputs,
                               std::span<void* const> outputs) {
  const Program& p = program();
  for (size_t k = 0; k < ports_.size(); ++k) {
    const void* pointer = k < inputs.size() ? inputs[k] : outputs[k - inputs.size()];
    if (pointer && ports_[k] == reinterpret_cast<DevicePointer>(pointer)) continue;  // as last time
    const Result<bool> there = lies_on_device(pointer);
    if (!there.ok()) return failed(there.error());
    if (!*there)
      return Error{
          Code::kUsage, "runtime",
          fmt::format("'{}' is not in the GPU's memory",
                      (k < inputs.size() ? p.inputs[k] : p.outputs[k - inputs.size()]).name),
          "", "device pointers, or the same without a stream"};
    ports_[k] = reinterpret_cast<DevicePointer>(pointer);
  }
  return ok_status();
}

Status CudaContext::end_on(Handle stream) {
  TRY_STATUS(copies(stream));
  TRY_STATUS(transfer(behind_, stream));
  has_run_ = under_way_ = true;
  return check(driver_.EventRecord(ran_, stream), "record an event");
}

Status CudaContext::wait() {
  if (broken_) return *broken_;
  if (!under_way_) return ok_status();
  InContext here(gpu_);
  return failed(check(driver_.EventSynchronize(ran_), "wait for the runs"));
}

}  // namespace obelisk::runtime::cuda
