// Serves several models at once, in this process: requests with deadlines from one thread, answers
// as they come.
//
//   many a.onnx b.onnx:batch [rate=200] [deadline_ms=20] [seconds=2]
//
// A dimension's name behind a colon: requests of that model may share a launch along it.
#include <obelisk/obelisk.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

namespace {

using namespace std::chrono_literals;

/// Inputs of zeros, one row each.
std::vector<obelisk::Input> zeros(const obelisk::ServedModel& model,
                                  std::vector<std::shared_ptr<std::vector<std::byte>>>& memory) {
  std::vector<obelisk::Input> inputs;
  for (const obelisk::Port& port : model.inputs) {
    size_t bytes = port.element == obelisk::Element::f64 || port.element == obelisk::Element::i64
                       ? 8
                       : 4;  // of what this example takes
    std::vector<int64_t> shape = port.shape;
    for (int64_t& extent : shape)
      extent = extent < 0 ? 1 : extent, bytes *= static_cast<size_t>(extent);
    memory.push_back(std::make_shared<std::vector<std::byte>>(bytes));
    inputs.push_back({port.name, port.element, shape, *memory.back(), memory.back()});
  }
  return inputs;
}

int serve(int argc, char** argv) {
  double rate = 200, deadline_ms = 20, seconds = 2;
  const std::map<std::string, double*> numbers = {
      {"rate", &rate}, {"deadline_ms", &deadline_ms}, {"seconds", &seconds}};
  obelisk::Server server;
  std::vector<std::string> names;
  for (int k = 1; k < argc; ++k) {
    const std::string word = argv[k];
    const size_t equals = word.find('='), colon = word.rfind(':');
    if (equals != std::string::npos && numbers.count(word.substr(0, equals))) {
      *numbers.at(word.substr(0, equals)) = std::atof(word.c_str() + equals + 1);
      continue;
    }
    obelisk::ServeOptions options;
    if (colon != std::string::npos)
      options.batch_dimension = word.substr(colon + 1), options.max_batch = 8;
    names.push_back(word.substr(0, colon));
    server.add(names.back(), names.back(), options);
  }
  for (const std::string& name : names) server.wait(name);

  std::map<std::string, std::map<obelisk::Outcome, int>> outcomes;
  std::mutex mutex;
  std::vector<std::shared_ptr<std::vector<std::byte>>> memory;
  std::map<std::string, std::vector<obelisk::Input>> inputs;
  for (const obelisk::ServedModel& model : server.models())
    inputs[model.name] = zeros(model, memory);
  std::vector<obelisk::Reply> replies;
  const auto start = std::chrono::steady_clock::now();
  for (int k = 0; k < static_cast<int>(rate * seconds); ++k) {
    std::this_thread::sleep_until(start + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                              std::chrono::duration<double>(k / rate)));
    const std::string& name = names[static_cast<size_t>(k) % names.size()];
    const auto deadline = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double, std::milli>(deadline_ms));
    replies.push_back(server.submit(name, inputs.at(name), {.deadline = deadline},
                                    [&outcomes, &mutex, name](obelisk::Response response) {
                                      const std::lock_guard lock(mutex);
                                      ++outcomes[name][response.outcome()];
                                    }));
  }
  for (const obelisk::Reply& reply : replies) (void)reply.get();
  server.drain();
  for (const obelisk::ServedModel& model : server.models())
    std::printf(
        "%s: %llu answered, %llu of %llu in time, %llu rejected, %llu late, %.2f rows a launch\n",
        model.name.c_str(), static_cast<unsigned long long>(model.answered),
        static_cast<unsigned long long>(model.in_time),
        static_cast<unsigned long long>(model.with_deadline),
        static_cast<unsigned long long>(model.rejected),
        static_cast<unsigned long long>(model.late),
        model.launches ? static_cast<double>(model.rows) / static_cast<double>(model.launches) : 0);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(
        stderr, "usage: many MODEL[:BATCH_DIMENSION]... [rate=200] [deadline_ms=20] [seconds=2]\n");
    return 1;
  }
  try {
    return serve(argc, argv);
  } catch (const obelisk::Failure& failure) {
    std::fprintf(stderr, "many: %s\n", failure.what());
    return static_cast<int>(failure.kind());
  }
}
