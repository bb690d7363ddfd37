#include "helpers.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

namespace obelisk::cli {

/// Beside the program: in a pack, where it was installed, or of the checkout whose build folder it
/// lies in.
std::string find_script(const std::string& name) {
  std::error_code failed;
  const std::filesystem::path prefix =
      std::filesystem::read_symlink("/proc/self/exe", failed).parent_path().parent_path();
  std::vector<std::filesystem::path> folders = {prefix / "scripts",
                                                prefix / "share" / "obelisk" / "scripts"};
  if (std::filesystem::exists(prefix / "CMakeCache.txt", failed))
    folders.push_back(prefix.parent_path() / "scripts");
  for (const std::filesystem::path& folder : folders)
    if (access((folder / name).c_str(), R_OK) == 0) return folder / name;
  return folders[1] / name;
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
