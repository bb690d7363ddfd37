#include "runtime/cuda/context.h"

namespace obelisk::runtime::cuda {
namespace {

constexpr int kCaptureRelaxed = 2;               // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr unsigned kSetCaptureDependencies = 1;  // CU_STREAM_SET_CAPTURE_DEPENDENCIES

/// While one lives, this thread may allocate memory although a stream is captured.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    driver_.ThreadCaptureMode(&mode_);
  }
  ~RelaxedCapture() { driver_.ThreadCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureRelaxed;  // that of the thread, after the exchange
};

}  // namespace

Result<bool> CudaContext::is_captured(Handle stream) const {
  int captured = 0;
  // Of the default stream while another one is captured the driver answers with an error, and so
  // does the launch.
  if (!driver_.StreamIsCapturing || driver_.StreamIsCapturing(stream, &captured) != 0 || !captured)
    return false;
  if (!driver_.StreamCaptureInfo || !driver_.GraphAddChild || !driver_.StreamCaptureDependencies ||
      !driver_.ThreadCaptureMode)
    return Error{Code::kUnsupported, "runtime", "this driver cannot add a graph to a captured one",
                 "", "a driver of CUDA 12 or later"};
  return true;
}

Status CudaExecutable::capture(std::vector<DevicePointer> ports, Handle stream) const {
  const RelaxedCapture relaxed(*driver_);
  // It is this executable's own, and must not keep it.
  const std::shared_ptr<const CudaExecutable> self(std::shared_ptr<void>(), this);
  auto context = std::make_unique<CudaContext>(self);
  TRY_STATUS(check_memory_limit(context->number()));
  TRY_STATUS(context->init());
  CudaContext& of_the_graph = *context;
  {
    const std::lock_guard held(capturing_);  // before the graph knows its addresses
    captured_.push_back(std::move(context));
  }
  return of_the_graph.capture(std::move(ports), stream);
}

Status CudaContext::capture(std::vector<DevicePointer> ports, Handle stream) {
  ports_ = std::move(ports);
  TRY_STATUS(place_ports());
  TRY_STATUS(bind(stream_));
  TRY_STATUS(check(driver_.StreamSynchronize(stream_), "name the ports"));
  TRY_STATUS(transfer(before_, stream));
  if (mono()) {
    TRY_STATUS(launch(stream, nullptr, 0));
  } else {
    TRY_STATUS(add_to_captured(stream));
  }
  TRY_STATUS(copies(stream));
  return transfer(behind_, stream);
}

Status CudaContext::add_to_captured(Handle stream) {
  int captured = 0;
  unsigned long long number = 0;
  Handle graph = nullptr;
  const Handle* behind = nullptr;
  size_t count = 0;
  TRY_STATUS(check(driver_.StreamCaptureInfo(stream, &captured, &number, &graph, &behind, &count),
                   "look at the captured stream"));
  const std::vector<Handle> before(behind, behind + count);
  Handle node = nullptr;
  const auto add = [&](bool programmatic) -> Status {
    TRY(const Handle kernels, graph_of_kernels(0, 1, programmatic, nullptr));
    const int code =
        driver_.GraphAddChild(&node, graph, before.data(), before.size(), kernels);  // its copy
    driver_.GraphDestroy(kernels);
    return check(code, "add the program to the captured graph");
  };
  const bool overlaps = executable_->device()->overlaps && driver_.GraphAddTypedEdges;
  if (!overlaps || !add(true).ok()) TRY_STATUS(add(false));
  return check(driver_.StreamCaptureDependencies(stream, &node, 1, kSetCaptureDependencies),
               "go on with the captured stream");
}

}  // namespace obelisk::runtime::cuda
