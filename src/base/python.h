/// base/python.h — the Python environments of this machine: the one of our helpers, and the folders
/// that hold packages, some of which contain native libraries and programs.
///
///   PythonPlaces::of_this_process() ── package_folders ──▶ .../site-packages, ...
///                                   ── package_parts("vendor", "lib") ──▶ .../vendor/part/lib, ...
#pragma once

#include <string>
#include <vector>

namespace obelisk {

/// The Python that has our helpers' packages: $OBELISK_PYTHON, that of the .venv in our own prefix
/// (PREFIX of PREFIX/bin/obelisk), python3 on the PATH; or empty.
std::string find_python();

/// Where environments are looked for. Empty ones are left out.
struct PythonPlaces {
  std::string packages;               // folders of packages, with colons between: $PYTHONPATH
  std::string python;                 // a program: $OBELISK_PYTHON
  std::vector<std::string> prefixes;  // of environments: our own, $VIRTUAL_ENV
  std::string programs;               // folders that may hold a python3: $PATH
  std::vector<std::string> bases;     // of packages without an environment: /usr/local, ~/.local
  bool only_ours =
      false;  // but for `python`: those that nobody but this user and root can write to
  /// Those out of which libraries are loaded and programs are started: $OBELISK_PYTHON, the
  /// environment that our own program lies in and the .venv beside it, and the system's packages.
  static PythonPlaces of_this_process();
  /// Others that a message may name: of $PYTHONPATH, $VIRTUAL_ENV, each Python on the PATH,
  /// ~/.local. Nothing in them is opened.
  static PythonPlaces not_asked_for();
};

/// The site-packages and dist-packages that are there, each once, in the order of the places.
std::vector<std::string> package_folders(const PythonPlaces& places);

/// The folders PACKAGES/vendor/*/part, by PACKAGES, then those whose name ends with the greatest
/// number first: of lib13, lib12 and lib in this order.
std::vector<std::string> package_parts(
    const std::string& vendor, const std::string& part,
    const PythonPlaces& places = PythonPlaces::of_this_process());

}  // namespace obelisk
