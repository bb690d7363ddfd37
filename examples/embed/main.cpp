// A program that carries Obelisk: compiles a network once, keeps the compiled file, and answers
// from several threads.
//   embed NETWORK.onnx [NAME=EXTENT...]     dimensions of the network that have names
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "obelisk/obelisk.h"

namespace {

obelisk::Model open_or_compile(const std::string& network, const obelisk::CompileOptions& options) {
  const std::string compiled = network + ".obk";
  if (std::filesystem::exists(compiled)) return obelisk::Model::open(compiled);
  const obelisk::Model model = obelisk::Model::compile(network, options);
  model.save(compiled);
  return model;
}

/// Each thread has its own context: inputs, outputs, workspace.
void answer(const obelisk::Model& model, int thread) {
  obelisk::Context context(model, 1);
  for (const obelisk::Port& port : model.inputs())
    if (port.element == obelisk::Element::f32)
      for (float& value : context.input<float>(port.name)) value = static_cast<float>(thread);
  context.run();
  for (const obelisk::Port& port : model.outputs()) {
    if (port.element != obelisk::Element::f32 || port.count == 0) continue;
    std::printf("thread %d: %s[0] = %g\n", thread, port.name.c_str(),
                context.output<float>(port.name)[0]);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) return std::fprintf(stderr, "usage: embed NETWORK [NAME=EXTENT...]\n"), 1;
  obelisk::CompileOptions options;
  for (int k = 2; k < argc; ++k) {
    const std::string text = argv[k];
    const size_t equal = text.find('=');
    if (equal == std::string::npos)
      return std::fprintf(stderr, "'%s' is not NAME=EXTENT\n", argv[k]), 1;
    options.dimensions[text.substr(0, equal)] = std::stoll(text.substr(equal + 1));
  }
  const obelisk::Model model = open_or_compile(argv[1], options);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) threads.emplace_back([&model, t] { answer(model, t); });
  for (std::thread& thread : threads) thread.join();
  return 0;
} catch (const obelisk::Failure& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return static_cast<int>(failure.kind());
}
