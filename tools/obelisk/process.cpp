#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

extern char** environ;

namespace obelisk::cli {

Result<Process> Process::start(const std::vector<std::string>& words, bool show_errors) {
  signal(SIGPIPE, SIG_IGN);  // a child that has gone is an answer of write(), not our end
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) != 0) return Error{Code::kUsage, "cli", fmt::format("no pipe: {}", strerror(errno))};
  if (pipe2(from, O_CLOEXEC) != 0) {
    close(to[0]), close(to[1]);
    return Error{Code::kUsage, "cli", fmt::format("no pipe: {}", strerror(errno))};
  }
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
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
    return Error{Code::kUsage, "cli", fmt::format("'{}' cannot be started: {}", words[0], strerror(failed))};
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
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string find_script(const std::string& name) {
  char own[4096];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof own);
  if (length > 0) {
    std::string folder(own, static_cast<size_t>(length));
    folder.resize(folder.rfind('/'));
    if (const std::string packed = folder + "/../scripts/" + name; access(packed.c_str(), R_OK) == 0) return packed;
  }
  return OBELISK_SOURCE_DIR "/scripts/" + name;
}

std::string find_tool(const std::string& name) {
  auto runs = [](const std::string& path) { return access(path.c_str(), X_OK) == 0; };
  const char* variable = getenv("PATH");
  std::string path = std::string(variable ? variable : "/usr/local/bin:/usr/bin:/bin") + ":/usr/local/cuda/bin";
  if (const std::string python = find_python(); !python.empty()) path += ":" + python.substr(0, python.rfind('/'));
  for (size_t at = 0; at <= path.size();) {
    const size_t colon = std::min(path.find(':', at), path.size());
    if (const std::string candidate = path.substr(at, colon - at) + "/" + name; runs(candidate)) return candidate;
    at = colon + 1;
  }
  return "";
}

std::string find_python() {
  auto runs = [](const std::string& path) { return access(path.c_str(), X_OK) == 0; };
  if (const char* told = getenv("OBELISK_PYTHON"); told && *told) return told;
  if (const std::string own = OBELISK_SOURCE_DIR "/.venv/bin/python"; runs(own)) return own;
  const char* variable = getenv("PATH");
  const std::string path = variable ? variable : "/usr/local/bin:/usr/bin:/bin";
  for (size_t at = 0; at <= path.size();) {
    const size_t colon = std::min(path.find(':', at), path.size());
    if (const std::string candidate = path.substr(at, colon - at) + "/python3"; runs(candidate)) return candidate;
    at = colon + 1;
  }
  return "";
}

}  // namespace obelisk::cli
