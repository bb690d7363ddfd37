#include "base/python.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/temporary_folder.h"

namespace obelisk {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

/// A machine of folders.
struct Machine {
  const TemporaryFolder folder = TemporaryFolder::create().value();
  std::string at(const std::string& name) const { return folder.path() + "/" + name; }
  void make(const std::string& name) const { fs::create_directories(at(name)); }
  void make_file(const std::string& name) const {
    make(fs::path(name).parent_path().string());
    std::ofstream(at(name)) << "#!/bin/sh\n";
  }
};

TEST(Python, PackagesLieInEnvironmentsAndInTheFoldersBeside) {
  const Machine m;
  m.make("told"), m.make("venv/lib/python3.11/site-packages");
  m.make_file("usr/bin/python3"), m.make("usr/lib/python3/dist-packages");
  m.make("local/lib/python3.11/dist-packages"), m.make("local/lib/python3.12/site-packages");
  m.make("home/.local/lib/python3.12/site-packages"), m.make("home/.local/lib/other/site-packages");
  const PythonPlaces places{.packages = m.at("told") + ":" + m.at("gone"),
                            .prefixes = {m.at("venv"), m.at("gone"), ""},
                            .programs = m.at("gone") + "::" + m.at("usr/bin"),
                            .bases = {m.at("local"), m.at("home/.local")}};
  EXPECT_THAT(
      package_folders(places),
      ElementsAre(m.at("told"), m.at("venv/lib/python3.11/site-packages"),
                  m.at("usr/lib/python3/dist-packages"), m.at("local/lib/python3.11/dist-packages"),
                  m.at("local/lib/python3.12/site-packages"),
                  m.at("home/.local/lib/python3.12/site-packages")));
  EXPECT_THAT(package_folders({}), IsEmpty());
}

TEST(Python, APythonIsItsEnvironmentAndWhereItsLinkLeads) {
  const Machine m;
  m.make_file("real/bin/python3.12"), m.make("real/lib/python3.12/site-packages");
  m.make("venv/bin"), m.make("venv/lib/python3.12/site-packages");
  fs::create_symlink(m.at("real/bin/python3.12"), m.at("venv/bin/python"));
  const auto both = ElementsAre(m.at("venv/lib/python3.12/site-packages"),
                                m.at("real/lib/python3.12/site-packages"));
  EXPECT_THAT(package_folders({.python = m.at("venv/bin/python")}), both);
  // Each once.
  EXPECT_THAT(package_folders({.python = m.at("venv/bin/python"), .prefixes = {m.at("real")}}),
              both);
  EXPECT_THAT(package_folders({.python = m.at("venv/bin/gone")}), IsEmpty());
}

TEST(Python, PartsOfAVendorComeNewestFirst) {
  const Machine m;
  const std::string vendor = "packages/vendor/";
  for (const char* part : {"lib9/bin", "lib13/bin", "lib/bin", "lib14/include"})
    m.make(vendor + part);
  m.make("other/vendor/lib15/bin");
  EXPECT_THAT(package_parts("vendor", "bin", {.packages = m.at("packages") + ":" + m.at("other")}),
              ElementsAre(m.at(vendor + "lib13/bin"), m.at(vendor + "lib9/bin"),
                          m.at(vendor + "lib/bin"), m.at("other/vendor/lib15/bin")));
}

TEST(Python, ThisProcessLooksWhereItsEnvironmentSays) {
  const auto set = [](const char* name, const char* value) {
    const char* old = getenv(name);
    const std::string kept = old ? old : "";
    value ? setenv(name, value, 1) : unsetenv(name);
    return std::pair{old != nullptr, kept};
  };
  const char* const names[] = {"PYTHONPATH", "OBELISK_PYTHON", "VIRTUAL_ENV", "PATH", "HOME"};
  std::vector<std::pair<bool, std::string>> kept;
  for (const char* name : names) kept.push_back(set(name, name));
  const PythonPlaces places = PythonPlaces::of_this_process(),
                     others = PythonPlaces::not_asked_for();
  const std::string python = find_python();
  for (size_t k = 0; k < kept.size(); ++k)
    set(names[k], kept[k].first ? kept[k].second.c_str() : nullptr);
  EXPECT_EQ(places.python, "OBELISK_PYTHON");
  EXPECT_EQ(python, "OBELISK_PYTHON");
  // Beside it our own place and the system's, of whatever the environment says.
  const std::string own = fs::read_symlink("/proc/self/exe").parent_path().parent_path().string();
  EXPECT_THAT(places.prefixes, ElementsAre(own, own + "/.venv"));
  EXPECT_THAT(places.bases, ElementsAre("/usr/local", "/usr"));
  EXPECT_EQ(places.packages, "");
  EXPECT_EQ(places.programs, "");
  EXPECT_TRUE(places.only_ours);
  EXPECT_EQ(others.packages, "PYTHONPATH");
  EXPECT_THAT(others.prefixes, ElementsAre("VIRTUAL_ENV"));
  EXPECT_EQ(others.programs, "PATH");
  EXPECT_THAT(others.bases, ElementsAre("HOME/.local"));
}

TEST(Python, PlacesThatOthersCanWriteToAreLeftOutUnlessAskedFor) {
  const Machine m;
  m.make("mine/lib/python3.11/site-packages"), m.make("open/lib/python3.11/site-packages");
  m.make("asked/lib/python3.11/site-packages"), m.make_file("asked/bin/python");
  for (const char* folder : {"open/lib", "asked/lib"})
    fs::permissions(m.at(folder), fs::perms::all);
  const PythonPlaces places{.python = m.at("asked/bin/python"),
                            .prefixes = {m.at("mine"), m.at("open")},
                            .only_ours = true};
  EXPECT_THAT(package_folders(places), ElementsAre(m.at("asked/lib/python3.11/site-packages"),
                                                   m.at("mine/lib/python3.11/site-packages")));
  fs::permissions(m.at("open/lib"), fs::perms::owner_all);
  EXPECT_THAT(package_folders(places), testing::SizeIs(3));
}

}  // namespace
}  // namespace obelisk
