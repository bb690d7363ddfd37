#include <chrono>

#include "runtime/cuda/executable.h"

namespace obelisk::runtime {

using namespace cuda;

Result<std::shared_ptr<const Executable>> load_cuda(std::shared_ptr<const Program> program,
                                                    const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  LoadReport report;
  std::vector<Image> images;
  if (!program->objects.empty() && options.instances && find_nvrtc().ok())
    report.not_carried = "its device code shares no launches";
  else if (!program->objects.empty() && program->objects.size() != 1 &&
           program->objects.size() != static_cast<size_t>(part_count(*program)))
    report.not_carried = "its device code is in another number of parts";
  else
    for (const std::string& object : program->objects) {
      auto image = from_entry(object);
      if (image.ok())
        images.push_back(std::move(*image));
      else
        report.not_carried = image.error().message;
    }
  if (!images.empty() && report.not_carried.empty()) {
    report.carried = 1;
  } else {
    auto built = build_images(*program, program->target, options);
    if (!built.ok() && !report.not_carried.empty()) {
      Error error = built.error();
      error.message += "; the file's own is not used: " + report.not_carried;
      return error;
    }
    TRY(images, std::move(built));
    for (int body = 0; body < static_cast<int>(program->bodies.size()); ++body)
      ++(images[static_cast<size_t>(part_of(body, static_cast<int>(images.size())))].cached
             ? report.cached
             : report.compiled);
    report.compiler = "NVRTC " + nvrtc_version();
  }
  if (options.progress) options.progress(1, 1);
  LoadOptions kept = options;
  kept.progress = {}, kept.interrupted = {};  // the caller's own end with this call
  if (report.carried > 0) kept.instances = false;
  auto executable = std::make_shared<CudaExecutable>(std::move(program), std::move(images), kept);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  TRY_STATUS(executable->init(std::move(report)));
  return std::shared_ptr<const Executable>(std::move(executable));
}

Result<std::string> find_device_compiler() { return find_nvrtc_of_driver(); }

Result<std::string> device_text(const Program& program, const std::string& kind,
                                const LoadOptions& options) {
  TRY(const std::string text, device_source(program));
  if (kind == "cuda") return text;
  if (kind == "cubin") {
    TRY(const Cubin cubin, compile_cubin(text, program.target, device_defines(program, options)));
    return cubin.bytes;
  }
  TRY(const Cubin cubin, compile_cubin(text, program.target, device_defines(program, options)));
  if (cubin.ptx.empty())
    return Error{Code::kUnsupported, "runtime",
                 "this version of NVRTC gives no PTX for " + program.target, "",
                 "update it: pip install -U nvidia-cuda-nvrtc"};
  return cubin.ptx;
}

}  // namespace obelisk::runtime
