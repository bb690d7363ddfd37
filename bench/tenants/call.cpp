// A call of a model in this process, one after the other: what a server's answers are compared
// with.
//
//   in_process_call MODEL [--seconds 2] [--workers 1]
//
// Inputs are zeros. One line of JSON: calls a second, the median and the 99th percentile in us.
#include <obelisk/obelisk.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;

int run(int argc, char** argv) {
  std::string model;
  double seconds = 2;
  obelisk::ServerOptions options;
  options.workers = 1;
  for (int k = 1; k < argc; ++k) {
    const std::string word = argv[k];
    if (word == "--seconds" && k + 1 < argc)
      seconds = std::stod(argv[++k]);
    else if (word == "--workers" && k + 1 < argc)
      options.workers = std::stoi(argv[++k]);
    else if (model.empty() && !word.starts_with("--"))
      model = word;
    else
      throw std::invalid_argument("usage: in_process_call MODEL [--seconds 2] [--workers 1]");
  }
  obelisk::Server server(options);
  server.add("model", model);
  server.wait("model");
  std::vector<obelisk::Input> inputs;
  const obelisk::ServedModel served = server.models().at(0);
  for (const obelisk::Port& port : served.inputs) {
    auto bytes = std::make_shared<std::vector<std::byte>>(port.bytes);
    inputs.push_back({port.name, port.element, port.shape, *bytes, bytes});
  }
  std::vector<double> times;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    const auto begun = Clock::now();
    const obelisk::Response answer = server.submit("model", inputs).get();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
    if (!answer.ok()) throw std::runtime_error(answer.error());
  }
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("{\"per_second\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
              static_cast<double>(times.size()) / seconds, at(0.5), at(0.99));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "in_process_call: %s\n", error.what());
    return 2;
  }
}
