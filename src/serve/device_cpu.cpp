#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "serve/device.h"

namespace obelisk::serve {
namespace {

/// Waking a thread and being woken by it, about. Chosen, not measured.
constexpr std::chrono::microseconds kWake{20};

int cores_we_may_use() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

/// The processor, as the system calls it.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 1);
  return "";
}

Error failed(const std::string& what, const std::string& where) {
  return {Code::kMemory, "serve", fmt::format("{}: {}: {}", what, where, strerror(errno)), "",
          "a folder with room for the weights of idle models"};
}

/// Weights in the memory of this process. Released they lie in a file without a name, which is
/// mapped where they were: their pages are the page cache's then, come back when they are read, and
/// are dropped again at no cost.
class CpuWeights : public Weights {
 public:
  explicit CpuWeights(std::string folder) : folder_(std::move(folder)) {
    if (folder_.empty()) folder_ = std::filesystem::temp_directory_path();
  }
  ~CpuWeights() override {
    if (file_ >= 0) close(file_);
  }
  void use(runtime::LoadOptions&) const override {}
  Status keep(const runtime::Executable& executable) override {
    for (const Tensor& weight : executable.program().weights) {
      if (weight.empty() || weight.bytes() == 0) continue;
      if (!kept_.try_emplace(weight.data(), Kept{weight, -1}).second) continue;
      bytes_ += weight.bytes();
    }
    return ok_status();
  }
  int64_t bytes() const override { return bytes_; }

  Status release() override {
    if (file_ < 0) {
      file_ = open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
      if (file_ < 0) return failed("a file for weights", folder_);
    }
    for (auto& [data, kept] : kept_) {
      const auto [begin, bytes] = pages(kept.tensor);
      if (bytes == 0) continue;
      if (kept.at < 0) {
        TRY_STATUS(store(begin, bytes));
        // The kernel puts the file's pages in place of the old ones at once.
        if (mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file_, end_) ==
            MAP_FAILED)
          return failed("map weights", folder_);
        kept.at = end_, end_ += static_cast<off_t>(bytes);
      }
      madvise(begin, bytes, MADV_DONTNEED);
    }
    return ok_status();
  }
  Status restore() override {
    for (const auto& [data, kept] : kept_) {
      const auto [begin, bytes] = pages(kept.tensor);
      if (bytes == 0) continue;
      madvise(begin, bytes, MADV_WILLNEED);
      const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
      for (size_t at = 0; at < bytes; at += page)
        static_cast<void>(*const_cast<const volatile char*>(begin + at));
    }
    return ok_status();
  }

 private:
  struct Kept {
    Tensor tensor;
    off_t at;  // in the file; -1: never written
  };
  /// The whole pages of a tensor: what shares its first and last one stays.
  static std::pair<char*, size_t> pages(const Tensor& tensor) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto from = reinterpret_cast<uintptr_t>(tensor.data());
    const uintptr_t begin = (from + page - 1) / page * page,
                    end = (from + static_cast<uintptr_t>(tensor.bytes())) / page * page;
    return {reinterpret_cast<char*>(begin), end > begin ? end - begin : 0};
  }
  Status store(const char* from, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
      const ssize_t wrote =
          pwrite(file_, from + done, bytes - done, end_ + static_cast<off_t>(done));
      if (wrote <= 0) return failed("write weights", folder_);
      done += static_cast<size_t>(wrote);
    }
    return ok_status();
  }

  std::string folder_;
  std::map<const void*, Kept> kept_;
  int64_t bytes_ = 0;
  int file_ = -1;
  off_t end_ = 0;
};

class CpuDevice : public Device {
 public:
  CpuDevice(int workers, std::string folder, bool instances)
      : workers_(workers > 0 ? workers : cores_we_may_use()),
        folder_(std::move(folder)),
        instances_(instances) {}
  int slots() const override { return workers_; }
  std::string unit() const override { return "workers"; }
  std::string name() const override {
    static const std::string name = processor();
    return name;
  }
  std::string target() const override { return "cpu"; }
  std::vector<int> widths() const override {
    std::vector<int> widths = {1};
    while (widths.back() * 2 <= workers_) widths.push_back(widths.back() * 2);
    if (widths.back() != workers_) widths.push_back(workers_);
    return widths;
  }
  bool any_width() const override { return true; }
  bool gives_way() const override { return true; }
  int threads(const Policy& policy) const override {
    return policy.kind == PolicyKind::kStreams ? policy.streams : workers_;
  }
  std::chrono::microseconds hand_over() const override { return kWake; }
  void aim(int, compiler::Options& options) const override {
    options.sms = workers_, options.threads = workers_;
    options.load.every_thread = true;  // the scheduler says how many
    options.load.instances = instances_;
  }
  Result<machine::Machine> machine(int) const override { return machine::cpu(workers_); }
  Result<std::shared_ptr<Weights>> weights() const override {
    return std::shared_ptr<Weights>(std::make_shared<CpuWeights>(folder_));
  }
  Result<std::unique_ptr<Seat>> seat(const runtime::Executable& executable,
                                     int width) const override {
    auto seat = std::make_unique<Seat>();
    TRY(seat->context, executable.context(width));
    for (const runtime::Port& port : executable.program().inputs) {
      seat->memory.push_back(Tensor::allocate(port.type));
      seat->inputs.push_back(static_cast<std::byte*>(seat->memory.back().mutable_data()));
    }
    return seat;
  }
  int64_t memory() const override { return 0; }
  bool ends_with(const Error&) const override { return false; }
  bool works() const override { return true; }

 private:
  const int workers_;
  const std::string folder_;
  const bool instances_;
};

}  // namespace

std::shared_ptr<const Device> cpu_device(int workers, std::string folder, bool instances) {
  return std::make_shared<CpuDevice>(workers, std::move(folder), instances);
}

}  // namespace obelisk::serve
