/// base/process.h — other programs: found on the PATH, started without a shell, spoken to in lines.
#pragma once

#include <sys/types.h>

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
  /// Closes the pipes and waits: the exit status, 128 + N when signal N ended it.
  int wait();

 private:
  Process(pid_t pid, int in, int out) : pid_(pid), in_(in), out_(out) {}
  pid_t pid_;
  int in_, out_;
  std::string rest_;  // read, but not yet given out
};

/// Runs a program to its end: no input, all that it says in the file `log`. Its own temporary files
/// lie in `folder`, which stays until it has ended, even when we are killed.
/// Returns the exit status, 127 when it cannot start, 128 + N when signal N ended it.
int run_program(const std::vector<std::string>& words, const std::string& log,
                const TemporaryFolder& folder);

/// The folders of $PATH, with colons between.
std::string search_path();

/// The first `name` in those folders that can be run (a name with a slash is a path); or empty.
std::string find_program(const std::string& name, const std::string& folders = search_path());

}  // namespace obelisk
