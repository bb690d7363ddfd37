// obelisk batch: commands from standard input, one after another in one process: a GPU's driver
// starts once for all of them.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "flags.h"

namespace obelisk::cli {
namespace {

/// What a file descriptor is sent, kept until it is asked for; the destructor gives the descriptor
/// back.
class Captured {
 public:
  Captured(int descriptor, FILE* stream) : descriptor_(descriptor), stream_(stream) {
    fflush(stream_);
    before_ = dup(descriptor_), file_ = memfd_create("obelisk", MFD_CLOEXEC);
    CHECK(before_ >= 0 && file_ >= 0 && dup2(file_, descriptor_) >= 0,
          "what is printed cannot be kept: {}", strerror(errno));
  }
  ~Captured() {
    fflush(stream_);
    dup2(before_, descriptor_);
    close(before_), close(file_);
  }
  std::string text() const {
    fflush(stream_);
    std::string all(static_cast<size_t>(lseek(file_, 0, SEEK_END)), '\0');
    for (size_t at = 0; at < all.size();) {
      const ssize_t got = pread(file_, all.data() + at, all.size() - at, static_cast<off_t>(at));
      if (got <= 0) break;
      at += static_cast<size_t>(got);
    }
    return all;
  }

 private:
  int descriptor_, before_, file_;
  FILE* stream_;
};

/// The words of a line, ["run", "model.onnx", ..]; a command of this kind within another has no
/// meaning.
Result<std::vector<std::string>> words_of(const std::string& line) {
  const Json all = Json::parse(line, nullptr, false);
  std::vector<std::string> words;
  if (all.is_array())
    for (const Json& word : all)
      if (word.is_string()) words.push_back(word);
  if (!all.is_array() || words.empty() || words.size() != all.size() || words[0] == "batch")
    return Error{
        Code::kUsage, "cli",
        fmt::format("a line of batch is the words of another command as JSON, not '{:.80}'", line),
        "", R"(["run", "model.onnx", "--json"])"};
  return words;
}

}  // namespace

int batch(const Flags& flags, const std::function<int(std::vector<std::string>)>& command) {
  for (std::string line; std::getline(std::cin, line);) {
    int status = 0;
    std::string out, err;
    {
      const Captured stdout_text(STDOUT_FILENO, stdout), stderr_text(STDERR_FILENO, stderr);
      auto words = words_of(line);
      status = words.ok() ? command(std::move(*words)) : fail(flags, words.error());
      out = stdout_text.text(), err = stderr_text.text();
    }
    const Json answer = {{"status", status}, {"stdout", out}, {"stderr", err}};
    fmt::print("{}\n", answer.dump(-1, ' ', false, Json::error_handler_t::replace));
    fflush(stdout);
    if (interrupted()) return static_cast<int>(Code::kInterrupted);
  }
  return 0;
}

}  // namespace obelisk::cli
