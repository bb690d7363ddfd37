#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
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
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return kStatusLost;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Whether the system forgets at once how a child of this process ended.
bool forgets_children() {
  struct sigaction now {};
  return sigaction(SIGCHLD, nullptr, &now) == 0 &&
         (now.sa_handler == SIG_IGN || (now.sa_flags & SA_NOCLDWAIT) != 0);
}

/// What posix_spawn takes, for a child in a process group of its own that can wait for its
/// children.
class Spawn {
 public:
  Spawn(const std::string& log, const TemporaryFolder& folder) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions_, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions_, 1, 2);
    // Under the same number too, it is inherited then.
    posix_spawn_file_actions_adddup2(&actions_, folder.lock(), folder.lock());
    posix_spawnattr_init(&attributes_);
    sigset_t child;
    sigemptyset(&child), sigaddset(&child, SIGCHLD);
    posix_spawnattr_setsigdefault(&attributes_, &child);
    posix_spawnattr_setpgroup(&attributes_, 0);
  }
  ~Spawn() { posix_spawn_file_actions_destroy(&actions_), posix_spawnattr_destroy(&attributes_); }
  Spawn(const Spawn&) = delete;
  /// The child, or -1.
  pid_t start(char* const* argv, char* const* environment, bool own_group) {
    posix_spawnattr_setflags(
        &attributes_,
        static_cast<short>(POSIX_SPAWN_SETSIGDEF | (own_group ? POSIX_SPAWN_SETPGROUP : 0)));
    pid_t pid = 0;
    return posix_spawn(&pid, argv[0], &actions_, &attributes_, argv, environment) == 0 ? pid : -1;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

/// Waits until `file` can be read. 0, or why the wait was given up.
int wait_for(int file, const RunLimits& limits) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    pollfd what = {file, POLLIN, 0};
    if (poll(&what, 1, 100) > 0) return 0;
    if (limits.interrupted && limits.interrupted()) return kStopped;
    if (limits.seconds > 0 &&
        std::chrono::duration<double>(Clock::now() - start).count() > limits.seconds)
      return kTimedOut;
  }
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
                const TemporaryFolder& folder, const RunLimits& limits) {
  std::vector<char*> argv = pointers(words);
  const std::string temporary = "TMPDIR=" + folder.path();
  std::vector<char*> environment;
  for (char** each = environ; *each; ++each) {
    if (!std::string_view(*each).starts_with("TMPDIR=")) environment.push_back(*each);
  }
  environment.insert(environment.end(), {const_cast<char*>(temporary.c_str()), nullptr});
  Spawn spawn(log, folder);
  // The child's end is seen at a file: at its descriptor, or at a pipe by which a keeper, who waits
  // for it where this process cannot, tells its status.
  const bool forgets = forgets_children();
  int pipe[2] = {-1, -1};
  if (forgets && pipe2(pipe, O_CLOEXEC) != 0) return kCannotStart;
  const pid_t pid = forgets ? fork() : spawn.start(argv.data(), environment.data(), true);
  if (forgets && pid == 0) {  // nothing here allocates: other threads may have held the allocator
    setpgid(0, 0);
    signal(SIGCHLD, SIG_DFL);
    const pid_t child = spawn.start(argv.data(), environment.data(), false);
    const int status = child < 0 ? kCannotStart : exit_status(child);
    _exit(write(pipe[1], &status, sizeof status) == sizeof status ? 0 : 1);
  }
  if (pid < 0) {
    for (int end : pipe)
      if (end >= 0) close(end);
    return kCannotStart;
  }
  if (forgets) setpgid(pid, pid), close(pipe[1]);
  const int file = forgets ? pipe[0] : static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  // An old system has no such descriptors: then there is no limit.
  const int given_up = file < 0 ? 0 : wait_for(file, limits);
  if (given_up != 0) kill(-pid, SIGKILL);
  int status = kStatusLost;
  if (forgets && given_up == 0 && read(file, &status, sizeof status) != sizeof status)
    status = kStatusLost;
  const int waited = exit_status(pid);
  if (!forgets) status = waited;
  if (file >= 0) close(file);
  return given_up != 0 ? given_up : status;
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
