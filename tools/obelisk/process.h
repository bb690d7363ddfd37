/// obelisk/process.h — a helper program beside ours: started without a shell, spoken to in lines.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"

namespace obelisk::cli {

/// A child with pipes at its standard input and output; its standard error is ours, or nowhere.
/// Destroying it closes the pipes, which is how helpers are told to end, and waits for it.
class Process {
 public:
  /// words[0] is a path. Errors: kUsage when it cannot be started.
  static Result<Process> start(const std::vector<std::string>& words, bool show_errors = true);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();

  bool write_line(const std::string& line);  // false: the child has gone
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

/// A program on the PATH, in /usr/local/cuda/bin or beside our helpers' Python; or empty.
std::string find_tool(const std::string& name);

/// One of our helper scripts: beside the program (a packed folder), or in the checkout that it was built from.
std::string find_script(const std::string& name);

/// The Python that has our helpers' packages: $OBELISK_PYTHON, .venv beside the sources, python3 on the PATH; or empty.
std::string find_python();

}  // namespace obelisk::cli
