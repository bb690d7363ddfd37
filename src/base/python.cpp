#include "base/python.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/process.h"

namespace obelisk {
namespace {

namespace fs = std::filesystem;

std::string environment_variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

std::vector<std::string> split_at_colons(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream all(list);
  for (std::string part; std::getline(all, part, ':');)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

/// The entries of a folder by name; none where there is no such folder.
std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

/// The number that a name ends with, 0 without one.
int number_of(const std::string& name) {
  size_t at = name.size();
  while (at > 0 && isdigit(static_cast<unsigned char>(name[at - 1]))) --at;
  return name.size() - at < 9 ? atoi(name.c_str() + at) : 0;
}

/// PREFIX of our own program PREFIX/bin/obelisk; empty where it lies in no such folder.
std::string own_prefix() {
  std::error_code failed;
  const fs::path own = fs::read_symlink("/proc/self/exe", failed);
  return failed || own.parent_path().filename() != "bin" ? ""
                                                         : own.parent_path().parent_path().string();
}

/// Whether nobody but this user and root can change what lies at a path, or put something else
/// there.
bool is_ours(const fs::path& path) {
  std::error_code failed;
  fs::path real = fs::canonical(path, failed);
  if (failed) return false;
  for (;; real = real.parent_path()) {
    struct stat about {};
    if (stat(real.c_str(), &about) != 0 || (about.st_uid != 0 && about.st_uid != geteuid()))
      return false;
    const bool by_others =
        (about.st_mode & S_IWOTH) != 0 ||
        ((about.st_mode & S_IWGRP) != 0 && about.st_gid != 0 && about.st_gid != getegid());
    if (by_others && (about.st_mode & S_ISVTX) == 0) return false;
    if (real == real.root_path()) return true;
  }
}

/// Folders, each once, in the order in which they were added.
class Folders {
 public:
  void add(const fs::path& folder) {
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) return;
    const std::string name = folder.lexically_normal().string();
    if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
  }
  /// PREFIX/lib/python3.11/site-packages and its like.
  void add_prefix(const fs::path& prefix) {
    for (const fs::path& python : entries(prefix / "lib"))
      if (python.filename().string().starts_with("python"))
        for (const char* packages : {"site-packages", "dist-packages"}) add(python / packages);
  }
  /// The environment of a program PREFIX/bin/python3: by its name, and where a link leads.
  void add_python(const fs::path& python) {
    std::error_code failed;
    if (!fs::exists(python, failed)) return;
    add_prefix(python.parent_path().parent_path());
    const fs::path real = fs::canonical(python, failed);
    if (!failed) add_prefix(real.parent_path().parent_path());
  }

  std::vector<std::string> all;
};

}  // namespace

std::string find_python() {
  if (const std::string told = environment_variable("OBELISK_PYTHON"); !told.empty()) return told;
  if (const std::string prefix = own_prefix(); !prefix.empty()) {
    const std::string own = find_program(prefix + "/.venv/bin/python");
    if (!own.empty() && is_ours(own)) return own;
  }
  return find_program("python3");
}

PythonPlaces PythonPlaces::of_this_process() {
  PythonPlaces places{.python = environment_variable("OBELISK_PYTHON"),
                      .bases = {"/usr/local", "/usr"},
                      .only_ours = true};
  if (const std::string prefix = own_prefix(); !prefix.empty())
    places.prefixes = {prefix, prefix + "/.venv"};
  return places;
}

PythonPlaces PythonPlaces::not_asked_for() {
  PythonPlaces places{.packages = environment_variable("PYTHONPATH"),
                      .prefixes = {environment_variable("VIRTUAL_ENV")},
                      .programs = search_path()};
  if (const std::string home = environment_variable("HOME"); !home.empty())
    places.bases.push_back(home + "/.local");
  return places;
}

std::vector<std::string> package_folders(const PythonPlaces& places) {
  Folders folders;
  for (const std::string& packages : split_at_colons(places.packages)) folders.add(packages);
  if (!places.python.empty()) folders.add_python(places.python);
  const size_t asked_for = folders.all.size();
  for (const std::string& prefix : places.prefixes)
    if (!prefix.empty()) folders.add_prefix(prefix);
  for (const std::string& programs : split_at_colons(places.programs))
    folders.add_python(fs::path(programs) / "python3");
  for (const std::string& base : places.bases) folders.add_prefix(base);
  if (places.only_ours)
    folders.all.erase(std::remove_if(folders.all.begin() + static_cast<std::ptrdiff_t>(asked_for),
                                     folders.all.end(),
                                     [](const std::string& folder) { return !is_ours(folder); }),
                      folders.all.end());
  return folders.all;
}

std::vector<std::string> package_parts(const std::string& vendor, const std::string& part,
                                       const PythonPlaces& places) {
  Folders folders;
  for (const std::string& packages : package_folders(places)) {
    std::vector<fs::path> parts = entries(fs::path(packages) / vendor);
    std::stable_sort(parts.begin(), parts.end(), [](const fs::path& a, const fs::path& b) {
      return number_of(a.filename().string()) > number_of(b.filename().string());
    });
    for (const fs::path& each : parts) folders.add(each / part);
  }
  return folders.all;
}

}  // namespace obelisk
