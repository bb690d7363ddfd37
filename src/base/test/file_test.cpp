#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/base.h"
#include "base/file_writer.h"

namespace obelisk {
namespace {

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("obelisk_file_test." + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  int entries() const {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  std::filesystem::path folder_;
};

TEST_F(Files, WriteReadMap) {
  ASSERT_TRUE(write_file(at("a"), "first").ok());
  ASSERT_TRUE(write_file(at("a"), std::string(100000, 'x')).ok());
  EXPECT_EQ(read_file(at("a")).value(), std::string(100000, 'x'));
  EXPECT_EQ(entries(), 1);
  auto file = MappedFile::open(at("a"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->size(), 100000u);
  EXPECT_EQ((*file)->data()[99999], std::byte{'x'});
  ASSERT_TRUE(write_file(at("empty"), "").ok());
  EXPECT_EQ(MappedFile::open(at("empty")).value()->size(), 0u);
}

TEST_F(Files, ACopyOutlivesWhatBecomesOfTheFile) {
  ASSERT_TRUE(write_file(at("a"), std::string(100000, 'x')).ok());
  MappedFile::open_copies();
  const auto file = MappedFile::open(at("a"));
  MappedFile::open_copies(false);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(truncate(at("a").c_str(), 10), 0);
  ASSERT_EQ((*file)->size(), 100000u);
  EXPECT_EQ((*file)->data()[99999], std::byte{'x'});
}

TEST_F(Files, ErrorsNameThePath) {
  EXPECT_EQ(MappedFile::open(at("none")).error().text(),
            "base: cannot read " + at("none") + ": No such file or directory");
  EXPECT_EQ(MappedFile::open(at("")).error().text(),
            "base: cannot read " + at("") + ": Is a directory; name a file in it");
  EXPECT_EQ(MappedFile::open("/dev/null").error().code, Code::kUsage);
  EXPECT_EQ(write_file(at("no/such"), "x").error().code, Code::kUsage);
  EXPECT_EQ(read_file(at("none")).error().code, Code::kUsage);
}

TEST_F(Files, AFailedWriteLeavesTheOldFileAndNoOther) {
  ASSERT_TRUE(write_file(at("a"), "old").ok());
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 1000;
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const Status status = write_file(at("a"), std::string(5000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kMemory);
  EXPECT_EQ(read_file(at("a")).value(), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(Files, AFileThatNeedNotBeOnTheDiskYetTakesThePlaceOfTheOld) {
  const auto commit = [&](const std::string& name, std::string_view bytes) {
    const auto file = FileWriter::create(at(name));
    if (!file.ok()) return Status(file.error());
    EXPECT_TRUE((*file)->write(bytes).ok());
    return (*file)->commit(FileWriter::kSoon);
  };
  for (const char* bytes : {"first", "second"}) {
    ASSERT_TRUE(commit("a", bytes).ok());
    EXPECT_EQ(read_file(at("a")).value(), bytes);
    EXPECT_EQ(entries(), 1);
  }
  ASSERT_EQ(::mkdir(at("folder").c_str(), 0700), 0);
  EXPECT_NE(commit("folder", "x").error().text().find("folder"), std::string::npos);
  EXPECT_EQ(entries(), 2);
  ASSERT_EQ(::symlink("a", at("link").c_str()), 0);  // the link is replaced, not what it names
  ASSERT_TRUE(commit("link", "third").ok());
  EXPECT_EQ(read_file(at("a")).value(), "second");
  EXPECT_EQ(read_file(at("link")).value(), "third");
  EXPECT_EQ(entries(), 3);
}

TEST_F(Files, WhatIsNoFileKeepsItsPlace) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("pipe", at("link").c_str()), 0);
  for (const char* name : {"pipe", "link"}) {
    const Status status = write_file(at(name), "x");
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::kUsage);
    EXPECT_NE(status.error().message.find("not a regular file"), std::string::npos);
  }
  EXPECT_EQ(entries(), 2);
}

TEST_F(Files, AKilledWriterLeavesNothing) {
  const int probe = ::open(folder_.c_str(), O_WRONLY | O_TMPFILE, 0600);
  if (probe < 0) GTEST_SKIP() << "the file system of " << folder_ << " has no files without a name";
  ::close(probe);
  ASSERT_TRUE(write_file(at("a"), "old").ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const auto file = FileWriter::create(at("a"));
    (void)(*file)->write(std::string(5000, 'x'));
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_file(at("a")).value(), "old");
  EXPECT_EQ(entries(), 1);
}

}  // namespace
}  // namespace obelisk
