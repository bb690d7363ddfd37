#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

extern char** environ;

namespace obelisk {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

int exit_status(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Result<Process> Process::start(const std::vector<std::string>& words, bool show_errors) {
  signal(SIGPIPE, SIG_IGN);  // a child that has gone is an answer of write(), not our end
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) != 0)
    return Error{Code::kUsage, "base", fmt::format("no pipe: {}", strerror(errno))};
  if (pipe2(from, O_CLOEXEC) != 0) {
    close(to[0]), close(to[1]);
    return Error{Code::kUsage, "base", fmt::format("no pipe: {}", strerror(errno))};
  }
  std::vector<char*> argv = pointers(words);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], 0);
  posix_spawn_file_actions_adddup2(&actions, from[1], 1);
  if (!show_errors) posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]), close(from[1]);
  if (failed) {
    close(to[1]), close(from[0]);
    return Error{Code::kUsage, "base",
                 fmt::format("'{}' cannot be started: {}", words[0], strerror(failed))};
  }
  return Process(pid, to[1], from[0]);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      in_(std::exchange(other.in_, -1)),
      out_(std::exchange(other.out_, -1)),
      rest_(std::move(other.rest_)) {}

Process::~Process() { wait(); }

bool Process::write_line(const std::string& line) {
  const std::string text = line + "\n";
  for (size_t at = 0; at < text.size();) {
    const ssize_t wrote = write(in_, text.data() + at, text.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    at += static_cast<size_t>(wrote);
  }
  return true;
}

bool Process::read_line(std::string& line) {
  for (;;) {
    if (const size_t end = rest_.find('\n'); end != std::string::npos) {
      line = rest_.substr(0, end);
      rest_.erase(0, end + 1);
      return true;
    }
    char buffer[65536];
    const ssize_t got = read(out_, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    rest_.append(buffer, static_cast<size_t>(got));
  }
}

std::string Process::read_all() {
  std::string text, line;
  while (read_line(line)) text += line + "\n";
  return text + std::exchange(rest_, "");
}

int Process::wait() {
  if (pid_ < 0) return 0;
  close(in_), close(out_);
  return exit_status(std::exchange(pid_, -1));
}

int run_program(const std::vector<std::string>& words, const std::string& log,
                const TemporaryFolder& folder) {
  std::vector<char*> argv = pointers(words);
  const std::string temporary = "TMPDIR=" + folder.path();
  std::vector<char*> environment;
  for (char** each = environ; *each; ++each) {
    if (!std::string_view(*each).starts_with("TMPDIR=")) environment.push_back(*each);
  }
  environment.insert(environment.end(), {const_cast<char*>(temporary.c_str()), nullptr});
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  // Under the same number too, it is inherited then.
  posix_spawn_file_actions_adddup2(&actions, folder.lock(), folder.lock());
  pid_t pid = 0;
  const int failed =
      posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  return failed ? 127 : exit_status(pid);
}

std::string search_path() {
  const char* path = getenv("PATH");
  return path ? path : "/usr/local/bin:/usr/bin:/bin";
}

std::string find_program(const std::string& name, const std::string& folders) {
  const auto runs = [](const std::string& path) {
    std::error_code failed;
    return std::filesystem::is_regular_file(path, failed) && access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) return runs(name) ? name : "";
  for (size_t at = 0; !name.empty() && at <= folders.size();) {
    const size_t colon = std::min(folders.find(':', at), folders.size());
    const std::string candidate = folders.substr(at, colon - at) + "/" + name;
    if (runs(candidate)) return candidate;
    at = colon + 1;
  }
  return "";
}

}  // namespace obelisk
