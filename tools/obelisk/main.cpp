// obelisk: the command line. Each verb is a file; this one only reads flags.
#include <CLI/CLI.hpp>
#include <csignal>
#include <new>
#include <sstream>

#include "flags.h"
#include "serve.h"
#include "simulate.h"

namespace {

/// A parse that failed, in our words: CLI11 says "A subcommand is required" of an unknown one too.
obelisk::Error usage(const CLI::App& app, const CLI::ParseError& wrong, int argc, char** argv) {
  const CLI::App* at = &app;
  int word = 1;
  for (; word < argc; ++word) {
    const std::string name = argv[word];
    const auto called_so = [&](const CLI::App* verb) { return verb->get_name() == name; };
    const std::vector<const CLI::App*> verbs = at->get_subcommands(called_so);
    if (verbs.empty()) break;
    at = verbs[0];
  }
  // Of a value that is none of its kind the second line names those that there are.
  const std::string said = wrong.what();
  const size_t end = said.find('\n');
  obelisk::Error error{
      obelisk::Code::kUsage, "cli", said.substr(0, end), "",
      end == std::string::npos ? "obelisk --help, obelisk VERB --help" : said.substr(end + 1)};
  const bool lacks_verb = dynamic_cast<const CLI::RequiredError*>(&wrong) != nullptr;
  if (at->get_require_subcommand_min() == 0 || !lacks_verb) return error;
  error.message =
      word < argc ? fmt::format("there is no verb '{}'", argv[word]) : "a verb is missing";
  error.hint.clear();
  for (const CLI::App* verb : at->get_subcommands([](const CLI::App*) { return true; }))
    error.hint += (error.hint.empty() ? "one of " : ", ") + verb->get_name();
  return error;
}

// Of `run` and `bench`, where somebody waits for an answer.
constexpr double kVerifySeconds = 10;

int run_command(int argc, char** argv) {
  using namespace obelisk;
  CLI::App app{
      "Obelisk compiles neural networks into one program.\n"
      "exit codes: 0 ok, 1 usage, 2 bad model, 3 unsupported, 4 build, 5 accuracy, 6 memory, 7 "
      "device, 130 interrupted"};
  app.set_version_flag("--version", OBELISK_VERSION);
  app.require_subcommand(1);
  cli::Flags flags;
  std::string output_dir, output;
  bool bisect = false;
  std::function<int()> body;

  CLI::App* check = app.add_subcommand("check", "what of a model can be run");
  cli::add_model(*check, flags);
  check->callback([&] { body = [&] { return cli::check(flags); }; });

  CLI::App* run = app.add_subcommand("run", "answers for given or generated inputs");
  cli::add_model(*run, flags);
  cli::add_machine(*run, flags);
  cli::add_inputs(*run, flags);
  cli::add_verify(*run, flags, kVerifySeconds);
  run->add_option("--output-dir", output_dir, "folder for NAME.npy of each output");
  run->callback([&] {
    flags.host_tail = true;
    body = [&] { return cli::run(flags, output_dir); };
  });

  run->add_flag("--portable", flags.portable,
                "compile the graph of an .obk again instead of trusting its machine code");
  cli::add_steps(*run, flags);

  CLI::App* compile = app.add_subcommand("compile", "a model into one file that runs");
  cli::add_model(*compile, flags);
  cli::add_machine(*compile, flags);
  compile->add_option("-o,--output", output, "the file to write (.obk)");
  cli::add_verify(*compile, flags, 0);
  compile->add_option("--seed", flags.seed, "of the generated inputs");
  cli::add_steps(*compile, flags);
  compile
      ->add_option("--emit", flags.emit,
                   "texts to write: schedule,dispatch, and of a GPU's program cuda,ptx,sass")
      ->check(CLI::Validator(
          [](const std::string& kinds) {
            std::istringstream list(kinds);
            for (std::string kind; std::getline(list, kind, ',');)
              if (kind != "cuda" && kind != "ptx" && kind != "sass" && kind != "schedule" &&
                  kind != "dispatch")
                return "there is no text '" + kind + "'";
            return std::string();
          },
          "KINDS"));
  compile->add_option("-d,--directory", flags.folder, "where --emit writes");
  compile->callback([&] { body = [&] { return cli::compile(flags, output); }; });

  CLI::App* verify = app.add_subcommand("verify", "compare answers with the reference");
  cli::add_model(*verify, flags);
  cli::add_machine(*verify, flags);
  cli::add_inputs(*verify, flags);
  verify->add_option("--against", flags.against, "who is right")
      ->check(CLI::IsMember({"reference", "onnxruntime"}));
  verify->add_flag("--bisect", bisect, "find the node that is the first to be off");
  verify->callback([&] { body = [&] { return cli::verify(flags, bisect); }; });

  CLI::App* inspect = app.add_subcommand("inspect", "what a model or a compiled file holds");
  cli::add_model(*inspect, flags);
  inspect->add_option(
      "--onnx", flags.onnx,
      "write the graph after the passes as a model for viewers: wave and group of each node");
  inspect->callback([&] { body = [&] { return cli::inspect(flags); }; });

  CLI::App* bench =
      app.add_subcommand("bench", "how long an answer takes, alone or beside ONNX Runtime");
  cli::add_model(*bench, flags);
  cli::add_machine(*bench, flags);
  cli::add_inputs(*bench, flags);
  cli::add_verify(*bench, flags, kVerifySeconds);
  bench
      ->add_option("--against", flags.against,
                   "the other side of alternating rounds: onnxruntime, torch (on a GPU: eager, a "
                   "graph of it, compiled, max-autotune), or some of its ways, "
                   "torch=eager,graph,compile")
      ->check(CLI::Validator(
          [](const std::string& name) {
            const bool known =
                name == "onnxruntime" || name == "torch" || name.starts_with("torch=");
            return known ? std::string() : fmt::format("there is no side '{}'", name);
          },
          "SIDE"));
  bench->add_option("--seconds", flags.seconds, "how long the rounds go on")
      ->check(CLI::Range(0.01, 3600.0));
  bench->callback([&] { body = [&] { return cli::bench(flags); }; });

  CLI::App* profile = app.add_subcommand("profile", "where a GPU's time goes, phase by phase");
  cli::add_model(*profile, flags);
  cli::add_machine(*profile, flags);
  cli::add_inputs(*profile, flags);
  profile->add_option(
      "--trace", flags.trace,
      "a file for Perfetto: a track for each SM, and of a graph of kernels for each lane");
  profile->callback([&] {
    flags.wants_lanes = true;
    body = [&] { return cli::profile(flags); };
  });

  CLI::App* report =
      app.add_subcommand("report", "a network as it is compiled, as one page for a browser");
  bool no_run = false;
  cli::add_model(*report, flags);
  cli::add_machine(*report, flags);
  cli::add_verify(*report, flags, kVerifySeconds);
  report->add_option("--seed", flags.seed, "of the generated inputs");
  report->add_option("-o,--output", output, "the page to write (.html)")->required();
  report->add_flag("--no-run", no_run, "time no run: predictions alone");
  report->callback([&] { body = [&] { return cli::report(flags, output, !no_run); }; });

  cli::SimulateFlags simulation;
  CLI::App* simulate =
      app.add_subcommand("simulate", "many models under deadlines, by a virtual clock");
  cli::add_simulate(*simulate, simulation);
  cli::add_json(*simulate, flags);
  simulate->callback([&] { body = [&] { return cli::simulate(flags, simulation); }; });

  CLI::App* cache = app.add_subcommand("cache", "the compiled bodies that are kept");
  cache->require_subcommand(1);
  for (const char* what : {"ls", "clear"}) {
    const bool clear = what == std::string("clear");
    CLI::App* verb = cache->add_subcommand(what, clear ? "remove them" : "list them");
    verb->add_option("--cache", flags.cache, "the folder");
    cli::add_json(*verb, flags);
    verb->callback([&, clear] { body = [&, clear] { return cli::cache(flags, clear); }; });
  }

  CLI::App* doctor = app.add_subcommand("doctor", "is everything here that Obelisk needs");
  doctor->add_option("--compiler", flags.compiler, "the C++ compiler that builds bodies");
  doctor->add_option("--cache", flags.cache, "folder of the object cache, or off");
  cli::add_json(*doctor, flags);
  doctor->callback([&] { body = [&] { return cli::doctor(flags); }; });

#ifdef OBELISK_SERVE
  CLI::App* serve = app.add_subcommand(
      "serve",
      "answers for a folder's models over the network: the Open Inference Protocol (KServe v2)");
  const std::function<int()> serve_body = cli::add_serve(*serve, flags);
  serve->callback([&] { body = serve_body; });
#endif

  CLI::App* batch =
      app.add_subcommand("batch",
                         "commands from standard input, a line of JSON each: [\"run\", "
                         "\"model.onnx\"]; their status and what they print go to "
                         "standard output, a line each");
  batch->callback([&] {
    body = [&] {
      return cli::batch(flags, [program = argv[0]](std::vector<std::string> words) {
        std::vector<char*> given = {program};
        for (std::string& word : words) given.push_back(word.data());
        return run_command(static_cast<int>(given.size()), given.data());
      });
    };
  });

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& wrong) {
    return cli::fail(flags, usage(app, wrong, argc, argv));
  }
  cli::install_interrupt_handler();
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return cli::fail(flags, Error{Code::kMemory, "cli", "out of memory", "",
                                  "smaller shapes, or a machine with more memory"});
  } catch (const Bug& bug) {
    return cli::fail(flags, Error{Code::kBuild, "cli", bug.what(), "",
                                  "this is a defect of Obelisk; please report it with the model"});
  } catch (const std::exception& other) {
    return cli::fail(flags, Error{Code::kBuild, "cli", other.what(), "",
                                  "this is a defect of Obelisk; please report it with the model"});
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(
      SIGCHLD,
      SIG_DFL);  // who ignores it hands that on, and then nobody learns how a compiler ended
  return run_command(argc, argv);
}
