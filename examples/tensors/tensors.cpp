// Tensors of PyTorch, NumPy and others as inputs and outputs of a network, in place: what
// `tensors.py` beside this calls through ctypes. A function that fails says so by -1 or nothing;
// tensors_error() tells why, of the thread's last failure.
#include <cstdio>
#include <memory>
#include <string>

#include "obelisk/dlpack.h"
#include "obelisk/obelisk.h"

namespace {

struct Network {
  obelisk::Context context;
  std::string ports;  // a line each: "in NAME ELEMENT EXTENT..."
};

thread_local std::string error;

template <typename Work>
auto guarded(const Work& work, decltype(work()) failed) {
  try {
    return work();
  } catch (const std::exception& failure) {
    error = failure.what();
    return failed;
  }
}

std::string lines(const char* side, std::span<const obelisk::Port> ports) {
  std::string text;
  for (const obelisk::Port& port : ports) {
    text += std::string(side) + " " + port.name + " " + obelisk::element_name(port.element);
    for (const int64_t extent : port.shape) text += " " + std::to_string(extent);
    text += "\n";
  }
  return text;
}

}  // namespace

extern "C" {

const char* tensors_error() { return error.c_str(); }

/// Of a network (.onnx) or a compiled file (.obk). `dimensions`: "batch=1 sequence=128".
Network* tensors_open(const char* path, const char* target, const char* dimensions) {
  return guarded(
      [&] {
        const std::string name = path, given = dimensions;
        obelisk::CompileOptions options{.target = target};
        for (size_t at = 0; at < given.size();) {
          const size_t end = std::min(given.find(' ', at), given.size()),
                       equal = given.find('=', at);
          if (equal >= end)
            throw std::runtime_error("'" + given.substr(at, end - at) + "' is not NAME=EXTENT");
          options.dimensions[given.substr(at, equal - at)] =
              std::stoll(given.substr(equal + 1, end - equal - 1));
          at = end + 1;
        }
        const obelisk::Model model = name.ends_with(".obk")
                                         ? obelisk::Model::open(name)
                                         : obelisk::Model::compile(name, options);
        return new Network{obelisk::Context(model),
                           lines("in", model.inputs()) + lines("out", model.outputs())};
      },
      nullptr);
}
void tensors_close(Network* network) { delete network; }

const char* tensors_ports(const Network* network) { return network->ports.c_str(); }

int tensors_bind(Network* network, const char* side, const char* name,
                 const DLManagedTensor* tensor) {
  return guarded(
      [&] {
        if (std::string(side) == "in")
          obelisk::bind_input(network->context, name, tensor->dl_tensor);
        else
          obelisk::bind_output(network->context, name, tensor->dl_tensor);
        return 0;
      },
      -1);
}

/// In the host's memory: done when it returns. On a GPU: on this stream (cudaStream_t), which has
/// the work when it returns.
int tensors_run(Network* network) {
  return guarded([&] { return network->context.run(), 0; }, -1);
}
int tensors_run_on(Network* network, void* stream) {
  return guarded([&] { return network->context.run_on(stream), 0; }, -1);
}
}
