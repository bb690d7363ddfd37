#include "helpers.h"

#include <stdlib.h>
#include <unistd.h>

namespace obelisk::cli {

std::string find_script(const std::string& name) {
  char own[4096];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof own);
  if (length > 0) {
    std::string packed(own, static_cast<size_t>(length));
    packed.resize(packed.rfind('/'));
    packed += "/../scripts/" + name;
    if (access(packed.c_str(), R_OK) == 0) return packed;
  }
  return OBELISK_SOURCE_DIR "/scripts/" + name;
}

std::string find_tool(const std::string& name) {
  std::string folders = search_path() + ":/usr/local/cuda/bin";
  const std::string python = find_python();
  if (!python.empty()) folders += ":" + python.substr(0, python.rfind('/'));
  return find_program(name, folders);
}

std::string find_python() {
  if (const char* told = getenv("OBELISK_PYTHON"); told && *told) return told;
  const std::string own = find_program(OBELISK_SOURCE_DIR "/.venv/bin/python");
  return own.empty() ? find_program("python3") : own;
}

}  // namespace obelisk::cli
