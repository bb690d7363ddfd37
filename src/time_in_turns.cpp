#include "time_in_turns.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "base/log.h"

namespace obelisk::compiler {

using runtime::Launches;

TimedAlone::TimedAlone(const runtime::Executable& executable) {
  const runtime::DeviceReport* device = executable.device();
  std::string name = device ? device->gpu : "";
  for (char& letter : name)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '-';
  std::error_code failed;  // there is no such folder: nothing can be locked in it either
  const std::string path = std::filesystem::temp_directory_path(failed) /
                           fmt::format("obelisk-timing-{}-{}.lock", ::geteuid(), name);
  constexpr int kOurs = 0600;
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kOurs);
  struct stat info = {};
  if (lock_ < 0 || ::fstat(lock_, &info) != 0 || info.st_uid != ::geteuid()) return;
  if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) return;
  LOG(kInfo, "compile", "waits for others that time programs on the GPU");
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (::flock(lock_, LOCK_EX | LOCK_NB) != 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TimedAlone::~TimedAlone() {
  if (lock_ >= 0) ::close(lock_);
}

Result<std::unique_ptr<runtime::Context>> run_once(const runtime::Executable& executable,
                                                   const std::vector<Tensor>& inputs) {
  TRY(auto context, executable.context());
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<Tensor> outputs;
  for (const Tensor& tensor : inputs) in.push_back(tensor.data());
  for (const runtime::Port& port : executable.program().outputs) {
    outputs.push_back(Tensor::allocate(port.type));
    out.push_back(outputs.back().mutable_data());
  }
  TRY_STATUS(context->run(in, out));
  return context;
}

Status time_in_turns(std::vector<Timed>& all, const std::vector<Tensor>& inputs) {
  constexpr int kRounds = 4, kFewest = 3, kMost = 20;
  constexpr double kLongest = 20e3;  // us of one round of one program: long ones run fewer times
  constexpr double kShort = 5e3;     // us: longer ones keep the GPU busy as they are launched
  struct Running {
    Timed* timed;
    std::unique_ptr<runtime::Context> context;
    double us = INFINITY, queued = INFINITY;  // the median of the quickest round
    int runs = kFewest;
    bool is_short = false;
  };
  std::vector<Running> running;
  if (all.empty()) return ok_status();
  const TimedAlone alone(*all[0].executable);
  for (Timed& each : all) {
    auto context = run_once(*each.executable, inputs);
    if (context.ok()) {
      running.push_back({&each, std::move(*context)});
    } else {
      if (context.error().code == Code::kDevice) return context.error();
      each.refused = context.error().message;
    }
  }
  const auto take = [&](Running& each, Launches launches, bool first) -> Status {
    if (!each.timed->refused.empty()) return ok_status();
    auto us = each.context->device_us(each.runs, launches);
    if (!us.ok()) {
      if (us.error().code == Code::kDevice) return us.error();
      each.timed->refused = us.error().message;
    } else if (!first) {
      double& least = launches == Launches::kInARow ? each.us : each.queued;
      const auto middle = us->begin() + static_cast<std::ptrdiff_t>(us->size() / 2);
      std::nth_element(us->begin(), middle, us->end());
      least = std::min(least, *middle);
    } else {
      const double longest = std::max(1.0, *std::max_element(us->begin(), us->end()));
      each.runs = static_cast<int>(std::clamp<double>(kLongest / longest, kFewest, kMost));
      each.is_short = longest < kShort;
    }
    return ok_status();
  };
  for (int round = 0; round < kRounds; ++round)
    for (Running& each : running) {
      TRY_STATUS(take(each, Launches::kInARow, round == 0));
      if (round > 0 && each.is_short) TRY_STATUS(take(each, Launches::kQueued, false));
    }
  for (Running& each : running)
    if (each.timed->refused.empty())
      each.timed->us = each.is_short ? std::max(each.us, each.queued) : each.us;
  return ok_status();
}

}  // namespace obelisk::compiler
