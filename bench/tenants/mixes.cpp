// Random mixes of several models through obelisk::Server, and whether every answer has the bits of
// that alone, while tenants come and go, cancel, are late, send NaN or want more than there is.
//
//   tenants mixes NAME=MODEL... --inputs DIR [--mixes 10000] [--target cuda] [--policy vliw]
//           [--width 33] [--precision keep] [--instances] [--workers N] [--callers 8] [--most 8]
//           [--large MODEL] [--memory-limit MIB] [--seed 1]
//
// A mix is up to --most requests of models and inputs at random, submitted at once by one of
// --callers threads. Inputs are DIR/NAME/k.PORT.bin, k from 0 on; of a model that takes floats one
// more is all NaN. Programs are made for one width, and requests are not joined: an answer has the
// same bits then whatever else is served (ServerOptions::widths).
//
// Of the requests one in sixteen is cancelled, at once or later, and one in sixteen has a deadline
// that it can hardly meet: these may end without an answer, all others must have one. Meanwhile a
// model that another one of the same file answers for comes and goes, each time also while it is
// asked; and --large, which wants more memory than there is, must be refused, each time that it is
// added.
//
// One line of JSON. `differ`: answers with other bits than alone; `wrong`: requests that ended as
// they must not. The exit status is 1 where either is not 0, or where --large was taken.
#include <obelisk/obelisk.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <mutex>
#include <random>
#include <thread>

#include "common.h"

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct Wanted {
  std::vector<std::pair<std::string, std::string>> models;
  std::string inputs, target = "cuda", policy = "vliw", precision = "keep", large;
  int width = 0, workers = 0, mixes = 10000, callers = 8, most = 8;
  int64_t memory_limit = 0;
  unsigned seed = 1;
  bool instances = false;
};

Wanted read(int argc, char** argv) {
  Wanted wanted;
  for (Words words(argc, argv); words.next();) {
    const std::string word = words.word();
    const auto value = [&] { return words.value(); };
    const auto whole = [&] { return std::stoi(value()); };
    if (word == "--inputs")
      wanted.inputs = value();
    else if (word == "--target")
      wanted.target = value();
    else if (word == "--policy")
      wanted.policy = value();
    else if (word == "--precision")
      wanted.precision = value();
    else if (word == "--large")
      wanted.large = value();
    else if (word == "--memory-limit")
      wanted.memory_limit = int64_t{whole()} << 20;
    else if (word == "--width")
      wanted.width = whole();
    else if (word == "--workers")
      wanted.workers = whole();
    else if (word == "--mixes")
      wanted.mixes = whole();
    else if (word == "--callers")
      wanted.callers = std::max(1, whole());
    else if (word == "--most")
      wanted.most = std::max(1, whole());
    else if (word == "--seed")
      wanted.seed = static_cast<unsigned>(whole());
    else if (word == "--instances")
      wanted.instances = true;
    else if (const size_t at = word.find('='); at != std::string::npos && !word.starts_with("--"))
      wanted.models.emplace_back(word.substr(0, at), word.substr(at + 1));
    else
      throw std::invalid_argument("there is no flag " + word);
  }
  if (wanted.models.empty() || wanted.inputs.empty())
    throw std::invalid_argument("models, NAME=MODEL, and --inputs are wanted");
  if (wanted.target != "cpu" && wanted.width < 1)
    throw std::invalid_argument(
        "--width is required: with several widths the bits depend on what else runs");
  return wanted;
}

/// What a model is asked, and what it answers when nobody else asks.
struct Question {
  std::vector<Bytes> memory;
  std::vector<obelisk::Input> inputs;
  std::vector<Bytes> alone;
  bool nan = false;
};
struct Model {
  std::string name, path;
  std::vector<Question> questions;
};

class Bench {
 public:
  explicit Bench(Wanted wanted)
      : wanted_(std::move(wanted)),
        server_(
            {.target = wanted_.target,
             .widths = wanted_.target == "cpu" ? std::vector<int>() : std::vector{wanted_.width},
             .instances = wanted_.instances,
             .workers = wanted_.workers,
             .policy = wanted_.policy,
             .verify = false,
             .memory_limit = wanted_.memory_limit}) {}

  int run() {
    load();
    for (Model& model : models_)
      for (Question& question : model.questions) ask_alone(model, question);
    const auto begun = Clock::now();
    std::atomic<int> done{0};
    std::vector<std::thread> threads;
    for (int caller = 0; caller < wanted_.callers; ++caller)
      threads.emplace_back([&, caller] {
        guarded([&] { call(caller); });
        ++done;
      });
    std::thread others([&] {
      guarded([&] {
        do come_and_go();
        while (done < wanted_.callers);
      });
    });
    for (std::thread& thread : threads) thread.join();
    others.join();
    const double seconds = us(Clock::now() - begun) / 1e6;
    // Alone again: what has gone by changed nothing.
    for (Model& model : models_)
      for (Question& question : model.questions)
        judge(server_.submit(model.name, question.inputs).get(), question, {});
    const bool refused = wanted_.large.empty() || (large_taken_ == 0 && large_refused_ > 0);
    std::printf(
        "{\"mode\": \"%s\", \"policy\": \"%s\", \"models\": %zu, \"mixes\": %d, \"requests\": %ld, "
        "\"answered\": %ld, \"cancelled\": %ld, \"late_or_refused\": %ld, \"of_nan\": %ld, "
        "\"beside_others\": %ld, \"guests\": %d, \"of_guests\": %ld, \"large_refused\": %d, "
        "\"large_reason\": \"%s\", \"differ\": %ld, \"wrong\": %ld, \"first_wrong\": \"%s\", "
        "\"seconds\": %.1f}\n",
        mode().c_str(), wanted_.policy.c_str(), models_.size(), wanted_.mixes, requests_.load(),
        answered_.load(), cancelled_.load(), late_.load(), of_nan_.load(), beside_.load(), guests_,
        of_guests_, large_refused_, plain(large_reason_).c_str(), differ_.load(), wrong_.load(),
        plain(first_wrong_).c_str(), seconds);
    return differ_ + wrong_ > 0 || !refused ? 1 : 0;
  }

 private:
  std::string mode() const {
    return wanted_.target == "cpu"
               ? "a CPU's bits, which depend on no width"
               : "programs for " + std::to_string(wanted_.width) + " SMs, requests not joined";
  }
  static std::string plain(std::string text) {
    for (char& c : text)
      if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ') c = ' ';
    return text;
  }
  void wrong(const std::string& why) {
    ++wrong_;
    const std::lock_guard lock(mutex_);
    if (first_wrong_.empty()) first_wrong_ = why;
  }
  template <typename Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      wrong(error.what());
    }
  }

  obelisk::ServeOptions options() const {
    obelisk::ServeOptions options;
    options.precision = wanted_.precision, options.queue_limit = 1 << 20;
    return options;
  }

  void load() {
    for (const auto& [name, path] : wanted_.models) {
      server_.add(name, path, options());
      models_.push_back({name, path, {}});
    }
    for (const Model& model : models_) server_.wait(model.name);
    for (const obelisk::ServedModel& served : server_.models()) {
      Model& model = *std::find_if(models_.begin(), models_.end(),
                                   [&](const Model& each) { return each.name == served.name; });
      const std::string folder = wanted_.inputs + "/" + model.name + "/";
      const auto file = [&](int k, const obelisk::Port& port) {
        return folder + std::to_string(k) + "." + port.name + ".bin";
      };
      for (int k = 0; std::filesystem::exists(file(k, served.inputs.at(0))); ++k) {
        Question& question = model.questions.emplace_back();
        for (const obelisk::Port& port : served.inputs)
          question.memory.push_back(read_file(file(k, port)));
      }
      if (model.questions.empty()) throw std::runtime_error(folder + " has no inputs");
      Question question{model.questions[0].memory, {}, {}, false};
      for (size_t k = 0; k < served.inputs.size(); ++k) {
        if (served.inputs[k].element != obelisk::Element::f32) continue;
        const float nan = std::numeric_limits<float>::quiet_NaN();
        Bytes& bytes = question.memory[k];
        for (size_t at = 0; at + sizeof nan <= bytes.size(); at += sizeof nan)
          std::memcpy(bytes.data() + at, &nan, sizeof nan);
        question.nan = true;
      }
      if (question.nan) model.questions.push_back(std::move(question));
      for (Question& each : model.questions)
        for (size_t k = 0; k < served.inputs.size(); ++k) {
          const obelisk::Port& port = served.inputs[k];
          each.inputs.push_back(
              {port.name, port.element, port.shape, each.memory[k],
               std::shared_ptr<const void>(each.memory[k].data(), [](const void*) {})});
        }
    }
  }

  void ask_alone(const Model& model, Question& question) {
    const obelisk::Response first = server_.submit(model.name, question.inputs).get();
    if (!first.ok()) throw std::runtime_error(model.name + ": no answer: " + first.error());
    question.alone = outputs_of(first);
    judge(server_.submit(model.name, question.inputs).get(), question, {});
  }

  struct May {
    bool be_cancelled = false, be_late = false, be_gone = false;
  };
  void judge(const obelisk::Response& response, const Question& question, May may) {
    ++requests_, of_nan_ += question.nan;
    using obelisk::Outcome;
    switch (response.outcome()) {
      case Outcome::kOk:
        ++answered_;
        beside_ += response.trace() && !response.trace()->partners.empty();
        differ_ += outputs_of(response) != question.alone;
        return;
      case Outcome::kCancelled:
        ++cancelled_;
        if (may.be_cancelled || may.be_gone) return;
        break;
      case Outcome::kLate:
      case Outcome::kRejected:
        ++late_;
        if (may.be_late || may.be_gone) return;
        break;
      case Outcome::kNotFound:
      case Outcome::kNotReady:
        if (may.be_gone) return;
        break;
      default:
        break;
    }
    wrong("outcome " + std::to_string(static_cast<int>(response.outcome())) + ": " +
          response.error());
  }

  struct Asked {
    const Question* question;
    obelisk::Reply reply;
    May may;
    bool cancel_later;
  };
  /// The mixes of one caller.
  void call(int caller) {
    std::mt19937 random(wanted_.seed * 1000 + static_cast<unsigned>(caller));
    for (int mix = caller; mix < wanted_.mixes; mix += wanted_.callers) {
      std::vector<Asked> asked;
      const size_t count = 1 + random() % static_cast<unsigned>(wanted_.most);
      for (size_t k = 0; k < count; ++k) {
        const Model& model = models_[random() % models_.size()];
        const Question& question = model.questions[random() % model.questions.size()];
        obelisk::SubmitOptions options;
        options.trace = true, options.client = random() % 2 ? "a" : "";
        May may;
        bool later = false;
        switch (random() % 16) {
          case 0:
            options.deadline = std::chrono::microseconds(1 + random() % 500), may.be_late = true;
            break;
          case 1:
            may.be_cancelled = true, later = random() % 2;
            break;
          case 2:
          case 3:
          case 4:
            options.deadline = 60s;
            break;
          default:
            break;
        }
        asked.push_back(
            {&question, server_.submit(model.name, question.inputs, options), may, later});
        if (may.be_cancelled && !later) asked.back().reply.cancel();
      }
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      for (Asked& each : asked)
        if (each.cancel_later) each.reply.cancel();
      for (Asked& each : asked) judge(each.reply.get(), *each.question, each.may);
    }
  }

  /// A guest of a model's file, asked before and while it is taken away; and the one that is too
  /// large.
  void come_and_go() {
    const Model& like = models_[static_cast<size_t>(guests_) % models_.size()];
    server_.add("guest", like.path, options());
    server_.wait("guest");
    ++guests_;
    std::vector<Asked> asked;
    for (const bool leaving : {false, true}) {
      for (const Question& question : like.questions)
        asked.push_back({&question,
                         server_.submit("guest", question.inputs, {.trace = true}),
                         {.be_gone = leaving},
                         false});
      if (leaving) server_.remove("guest");
      for (Asked& each : asked) judge(each.reply.get(), *each.question, each.may), ++of_guests_;
      asked.clear();
    }
    constexpr int kEach = 32;  // guests: nobody else is loaded while it is
    if (wanted_.large.empty() || guests_ % kEach != 1) return;
    server_.add("large", wanted_.large, options());
    try {
      server_.wait("large");
      ++large_taken_;
    } catch (const obelisk::Failure& error) {
      ++large_refused_, large_reason_ = error.what();
      if (large_reason_.find("it takes ") == std::string::npos) wrong(large_reason_);
    }
    server_.remove("large");
  }

  const Wanted wanted_;
  std::vector<Model> models_;
  std::atomic<long> requests_{0}, answered_{0}, cancelled_{0}, late_{0}, of_nan_{0}, beside_{0},
      differ_{0}, wrong_{0};
  int guests_ = 0, large_refused_ = 0, large_taken_ = 0;
  long of_guests_ = 0;
  std::mutex mutex_;
  std::string first_wrong_, large_reason_;
  obelisk::Server server_;  // last: ends before what its requests read
};

}  // namespace

int mixes(int argc, char** argv) { return Bench(read(argc, argv)).run(); }
