/// base/process.h — other programs: found on the PATH, started without a shell, spoken to in lines.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/temporary_folder.h"

namespace obelisk {

/// A child with pipes at its standard input and output; its standard error is ours, or nowhere.
/// Destroying it closes the pipes, which is the signal for a helper to end, and waits for it.
class Process {
 public:
  /// words[0] is a path. Errors: kUsage when it cannot be started.
  static Result<Process> start(const std::vector<std::string>& words, bool show_errors = true);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();

  bool write_line(const std::string& line);  // false: the child has exited
  bool read_line(std::string& line);         // false: the child closed its output
  std::string read_all();
  /// Closes the pipes and waits: the exit status, 128 + N when signal N ended it, kStatusLost.
  int wait();

 private:
  Process(pid_t pid, int in, int out) : pid_(pid), in_(in), out_(out) {}
  pid_t pid_;
  int in_, out_;
  std::string rest_;  // read, but not yet given out
};

/// Exit statuses that are none of the program's.
constexpr int kCannotStart = 127, kTimedOut = 124, kStopped = 130;
constexpr int kStatusLost = 125;  // something else in this process waited for the child

/// How long a program may run.
struct RunLimits {
  double seconds = 0;                 // 0: as long as it wants
  std::function<bool()> interrupted;  // asked several times a second; true ends it
};

/// Runs a program to its end: no input, all that it says in the file `log`. Its own temporary files
/// lie in `folder`, which stays until it has ended, even when we are killed. A program that is
/// ended takes those with it that it started. Also where this process ignores SIGCHLD, when the
/// system forgets how children ended. Returns the exit status, 128 + N when signal N ended it, or
/// one of the above.
int run_program(const std::vector<std::string>& words, const std::string& log,
                const TemporaryFolder& folder, const RunLimits& limits = {});

/// The folders of $PATH, with colons between.
std::string search_path();

/// The first `name` in those folders that can be run (a name with a slash is a path); or empty.
std::string find_program(const std::string& name, const std::string& folders = search_path());

}  // namespace obelisk
