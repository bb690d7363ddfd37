/// runtime/cuda/executable.h — a program that is loaded on a GPU: its images as modules, weights
/// and tables in the GPU's memory, the report.
///
///   Program, images, options  ──▶  CudaExecutable, immutable  ──▶  contexts (context.h)
///
/// Without a GPU it is a report and a context's refusal. Weights and tables are uploaded with the
/// first context.
#pragma once

#include <atomic>
#include <mutex>

#include "runtime/cuda/images.h"
#include "runtime/cuda/tables.h"

namespace obelisk::runtime::cuda {

class CudaExecutable : public Executable, public std::enable_shared_from_this<CudaExecutable> {
 public:
  CudaExecutable(std::shared_ptr<const Program> program, std::vector<Image> images,
                 const LoadOptions& options)
      : program_(std::move(program)), images_(std::move(images)), options_(options) {}
  ~CudaExecutable() override {
    if (modules_.empty()) return;
    InContext here(gpu_);
    captured_.clear();
    weight_memory_.clear();
    for (Memory* each : {&tasks_, &first_, &blocks_}) each->release();
    for (Handle module : modules_) driver_->ModuleUnload(module);
  }

  const Program& program() const override { return *program_; }
  const LoadReport& report() const override { return report_; }
  const DeviceReport* device() const override { return &device_; }
  std::vector<LaunchReport> launches() const override;
  std::string code() const override { return code_; }
  std::vector<std::string> objects() const override {
    std::vector<std::string> entries;
    for (const Image& image : images_) entries.push_back(to_entry(image));
    return entries;
  }
  Result<std::unique_ptr<Context>> context(int threads) const override;

  /// A run as a part of the graph that a stream captures. It has a context of its own, which lives
  /// as long as the executable: the graph may be launched while other runs are under way.
  Status capture(std::vector<DevicePointer> ports, Handle stream) const;

  /// Tables and the report; the GPU's side only where one is.
  Status init(LoadReport report);
  /// Weights and tables on the GPU, when the first context is made: who compiles for a file has
  /// none.
  Status fill() const;

  std::shared_ptr<const Program> program_;
  std::vector<Image> images_;  // by part
  const LoadOptions options_;
  std::string code_;  // of a program of instances: a hash of images, launches and ports
  LoadReport report_;
  DeviceReport device_;
  Tables cut_;
  const Driver* driver_ = nullptr;
  Gpu gpu_;
  std::optional<Error> absent_;    // why there is no GPU to run on
  std::vector<Handle> modules_;    // by part
  std::vector<Handle> functions_;  // by launch
  int room_ = 0;                   // CTAs of a program of one kernel that run at once
  Memory tasks_, first_, blocks_;
  std::vector<DevicePointer> weights_;    // by number; 0: nobody reads it
  mutable std::atomic<int> contexts_{0};  // that there are now

 private:
  bool mono() const { return program_->granularity == machine::Granularity::kMono; }
  Status on_gpu();
  Status check_memory_limit(int contexts) const;
  Status upload();
  Status upload_weights();

  std::vector<Memory> weight_memory_;  // of weights that no other program has
  mutable std::mutex filling_;         // guards `filled_` and what upload() writes
  mutable bool filled_ = false;        // what fails is tried again: memory may be free by then
  mutable std::mutex capturing_;       // guards `captured_`
  mutable std::vector<std::unique_ptr<Context>> captured_;
};

}  // namespace obelisk::runtime::cuda
