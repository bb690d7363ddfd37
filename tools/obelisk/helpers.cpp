#include "helpers.h"

#include <fmt/format.h>
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
  for (const std::string& folder : package_parts("nvidia", "bin")) folders += ":" + folder;
  return find_program(name, folders);
}

std::string find_disassembler() {
  const char* told = getenv("OBELISK_NVDISASM");
  return told && *told ? find_program(told) : find_tool("nvdisasm");
}

std::string pip_install(const std::string& package) {
  const std::string python = find_python();
  return fmt::format("{} -m pip install {}", python.empty() ? "python3" : python, package);
}

}  // namespace obelisk::cli
