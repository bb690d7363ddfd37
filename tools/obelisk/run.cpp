// obelisk run: answers for given or generated inputs, as files.
#include <chrono>
#include <filesystem>
#include <map>

#include "base/npy.h"
#include "runner.h"

namespace obelisk::cli {
namespace {

namespace fs = std::filesystem;

std::string safe_name(const std::string& name) {
  std::string out = name;
  for (char& c : out)
    if (!isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '_';
  return out;
}

/// Two outputs may have names that are one as a file's.
Status files_apart(const std::vector<runtime::Port>& outputs) {
  std::map<std::string, std::string> names;
  for (const runtime::Port& port : outputs) {
    const auto [other, fresh] = names.try_emplace(safe_name(port.name), port.name);
    if (!fresh)
      return Error{Code::kUsage, "cli",
                   fmt::format("the outputs '{}' and '{}' would both be written to {}.npy",
                               other->second, port.name, other->first),
                   "", "rename one of them in the model, or leave --output-dir out"};
  }
  return ok_status();
}

/// What the model answers: the program's outputs, and those that the host makes of them.
struct Answers {
  std::vector<runtime::Port> ports;
  std::vector<Tensor> tensors;
};
Result<Answers> answers_of(const Runner& runner, const std::vector<Tensor>& out) {
  const compiler::HostTail* tail = runner.compilation.tail.get();
  if (!tail) return Answers{runner.outputs, out};
  TRY(const std::vector<Tensor> late, tail->run(out));
  Answers answers;
  for (size_t k = 0; k < tail->outputs().size(); ++k) {
    const auto& output = tail->outputs()[k];
    const Tensor& tensor = output.head < 0 ? late[k] : out[static_cast<size_t>(output.head)];
    answers.ports.push_back({output.name, tensor.type()});
    answers.tensors.push_back(tensor);
  }
  return answers;
}

std::vector<runtime::Port> ports_of(const Runner& runner) {
  if (!runner.compilation.tail) return runner.outputs;
  std::vector<runtime::Port> ports;
  for (const auto& output : runner.compilation.tail->outputs()) ports.push_back({output.name, {}});
  return ports;
}

}  // namespace

int run(const Flags& flags, const std::string& output_dir) {
  // nothing runs: the same steps, for these inputs
  if (!flags.to.empty()) {
    Flags unverified = flags;
    unverified.verify = flags.to == "verify";
    return compile(unverified, "");
  }
  auto source = open_source(flags);
  if (!source.ok()) return fail(flags, source.error());
  frontends::ImportReport report;
  auto runner = make_runner(flags, *source, report);
  if (!runner.ok()) return fail(flags, runner.error(), &report);
  if (!output_dir.empty())
    if (Status apart = files_apart(ports_of(**runner)); !apart.ok())
      return fail(flags, apart.error());
  auto in = feeds(flags, *source, (*runner)->inputs, [&] { return graph_of(**runner, *source); });
  if (!in.ok()) return fail(flags, in.error());
  std::vector<Tensor> made = (*runner)->allocate_outputs();
  Answers out;
  double best = 0;
  // the first run touches memory for the first time
  const bool again = (*runner)->target != "reference";
  for (int round = 0; round < (again ? 2 : 1); ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (Status status = (*runner)->run(*in, made); !status.ok()) return fail(flags, status.error());
    auto answers = answers_of(**runner, made);
    if (!answers.ok()) return fail(flags, answers.error());
    out = std::move(*answers);
    best =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    if (interrupted()) return fail(flags, Error{Code::kInterrupted, "cli", "interrupted"});
  }
  Json outputs = Json::array();
  std::string text;
  if (!output_dir.empty()) {
    std::error_code failed;
    fs::create_directories(output_dir, failed);
    if (failed)
      return fail(flags, Error{Code::kUsage, "cli",
                               fmt::format("the folder '{}' cannot be made: {}", output_dir,
                                           failed.message())});
  }
  for (size_t k = 0; k < out.tensors.size(); ++k) {
    const runtime::Port& port = out.ports[k];
    Json one = port_json(port.name, port.type);
    text += fmt::format("{:<24} {}", port.name, to_string(port.type));
    if (!output_dir.empty()) {
      const std::string file = output_dir + "/" + safe_name(port.name) + ".npy";
      if (Status written = write_npy(file, out.tensors[k]); !written.ok())
        return fail(flags, written.error());
      one["file"] = file;
      text += "  " + file;
    }
    text += "\n";
    outputs.push_back(std::move(one));
  }
  text += fmt::format("{:.1f} us on {}\n{}\n", best, (*runner)->target, (*runner)->verified.text());
  Json json = {{"target", (*runner)->target},
               {"outputs", outputs},
               {"latency_us", best},
               {"verified", (*runner)->verified.json()}};
  if (const auto& tail = (*runner)->compilation.tail)
    text += "host: " + tail->text(), json["host"] = tail->text();
  answer(flags, json, text);
  return 0;
}

}  // namespace obelisk::cli
