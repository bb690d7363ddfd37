#include "base/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include <fmt/format.h>

#include "base/file.h"

namespace obelisk {
namespace {

namespace fs = std::filesystem;

TEST(Process, SpeaksInLines) {
  auto cat = Process::start({"/bin/cat"});
  ASSERT_TRUE(cat.ok());
  EXPECT_TRUE(cat->write_line("one"));
  EXPECT_TRUE(cat->write_line(std::string(100000, 'x')));
  std::string line;
  EXPECT_TRUE(cat->read_line(line));
  EXPECT_EQ(line, "one");
  EXPECT_TRUE(cat->read_line(line));
  EXPECT_EQ(line.size(), 100000u);
  EXPECT_EQ(cat->wait(), 0);
}

TEST(Process, OneThatCannotStartIsNamed) {
  EXPECT_THAT(Process::start({"/no/such"}).error().text(),
              testing::StartsWith("base: '/no/such' cannot be started"));
}

TEST(Process, ProgramsAreFoundInFolders) {
  EXPECT_EQ(find_program("sh", "/no/such:/bin"), "/bin/sh");
  EXPECT_EQ(find_program("/bin/sh", ""), "/bin/sh");
  EXPECT_EQ(find_program("bin", "/"), "");  // a folder is not a program
  EXPECT_EQ(find_program("", "/bin"), "");
  EXPECT_EQ(find_program("no-such-program"), "");
}

TEST(Process, AProgramsEndAndItsWordsComeBack) {
  const auto folder = TemporaryFolder::create();
  ASSERT_TRUE(folder.ok());
  const std::string log = folder->path() + "/log";
  const auto run = [&](const std::string& text) {
    return run_program({"/bin/sh", "-c", text}, log, *folder);
  };
  EXPECT_EQ(run("echo out; echo err >&2; echo $TMPDIR; exit 3"), 3);
  EXPECT_EQ(read_file(log).value(), "out\nerr\n" + folder->path() + "\n");
  EXPECT_EQ(run("kill -9 $$"), 128 + SIGKILL);
  EXPECT_EQ(run_program({"/no/such"}, log, *folder), 127);
}

TEST(Process, AProgramThatTakesTooLongEndsWithItsChildren) {
  const auto folder = TemporaryFolder::create();
  ASSERT_TRUE(folder.ok());
  const std::string log = folder->path() + "/log", child = folder->path() + "/child";
  const std::vector<std::string> words = {
      "/bin/sh", "-c",
      "sleep 1000 & echo $! >" + child + ".part; mv " + child + ".part " + child + "; wait"};
  const auto sleeper = [&] {
    const auto text = read_file(child);
    return static_cast<pid_t>(text.ok() ? atoi(text->c_str()) : 0);
  };
  const auto expect_gone = [](pid_t pid) {
    ASSERT_GT(pid, 1);
    bool gone = false;  // or about to go: nobody of ours waits for it
    for (int tries = 0; !gone && tries < 1000; ++tries) {
      const auto about = read_file(fmt::format("/proc/{}/stat", pid));
      gone = !about.ok() || about->find(") Z ") != std::string::npos;
      if (!gone) ::usleep(10000);
    }
    EXPECT_TRUE(gone);
  };
  for (const auto disposition : {SIG_DFL, SIG_IGN}) {
    const auto before = ::signal(SIGCHLD, disposition);
    // A busy machine may not have started the child within the first limit.
    std::filesystem::remove(child);
    for (double seconds = 0.25; sleeper() == 0 && seconds < 100; seconds *= 2)
      EXPECT_EQ(run_program(words, log, *folder, {.seconds = seconds}), kTimedOut);
    expect_gone(sleeper());
    std::filesystem::remove(child);
    EXPECT_EQ(run_program(words, log, *folder, {.interrupted = [&] { return sleeper() != 0; }}),
              kStopped);
    expect_gone(sleeper());
    ::signal(SIGCHLD, before);
  }
}

TEST(Process, HowAProgramEndedIsKnownWhereChildrenAreIgnored) {
  const auto folder = TemporaryFolder::create();
  ASSERT_TRUE(folder.ok());
  const std::string log = folder->path() + "/log";
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  const int failed = run_program({"/bin/sh", "-c", "echo no; exit 3"}, log, *folder);
  const int fine =
      run_program({"/bin/sh", "-c", "sh -c 'exit 7'; test $? = 7"}, log + "2", *folder);
  const int killed = run_program({"/bin/sh", "-c", "kill -9 $$"}, log + "3", *folder);
  const int missing = run_program({"/no/such"}, log + "4", *folder);
  ::signal(SIGCHLD, before);
  EXPECT_EQ(failed, 3);
  EXPECT_EQ(read_file(log).value(), "no\n");
  EXPECT_EQ(fine, 0);
  EXPECT_EQ(killed, 128 + SIGKILL);
  EXPECT_EQ(missing, kCannotStart);
}

TEST(Process, AStatusThatSomebodyElseTookIsNoSuccess) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  auto gone = Process::start({"/bin/false"});
  ASSERT_TRUE(gone.ok());
  const int status = gone->wait();
  ::signal(SIGCHLD, before);
  EXPECT_EQ(status, kStatusLost);
}

TEST(TemporaryFolders, GoWithTheirContents) {
  std::string path;
  {
    const auto folder = TemporaryFolder::create();
    ASSERT_TRUE(folder.ok());
    path = folder->path();
    fs::create_directory(path + "/inner");
    ASSERT_TRUE(write_file(path + "/inner/file", "x").ok());
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
  }
  EXPECT_FALSE(fs::exists(path));
}

/// A process that makes a folder in `base`, fills it, and acts; gives its exit as waitpid says it.
template <typename Act>
int with_folder_in(const fs::path& base, Act act) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("TMPDIR", base.c_str(), 1);
    const auto folder = TemporaryFolder::create();
    if (!folder.ok() || !write_file(folder->path() + "/file", "x").ok()) ::_exit(9);
    act(*folder);
    ::_exit(0);  // without destroying the folder
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

class LeftFolders : public testing::Test {
 protected:
  LeftFolders() : outer(TemporaryFolder::create().value()), base(outer.path()) {}
  int entries() const { return static_cast<int>(std::distance(fs::directory_iterator(base), {})); }
  TemporaryFolder outer;
  fs::path base;
};

TEST_F(LeftFolders, OfAKilledProcessGoWithTheNextOne) {
  EXPECT_TRUE(WIFSIGNALED(with_folder_in(base, [](const auto&) { ::raise(SIGKILL); })));
  EXPECT_EQ(entries(), 1);
  fs::create_directory(base / "obelisk.other");   // not a name of ours
  fs::create_directory(base / "another.abcdef");  // nor this
  int seen = -1;
  const int status = with_folder_in(base, [&](const TemporaryFolder&) { ::_exit(entries()); });
  seen = WEXITSTATUS(status);
  EXPECT_EQ(seen, 3);  // the two that are not ours, and its own
}

TEST_F(LeftFolders, StayWhileTheirOwnerOrItsChildLives) {
  // The owner is killed; the program that it runs there has a second to live.
  const int status = with_folder_in(base, [&](const TemporaryFolder& folder) {
    std::thread killer([&] {
      while (!fs::exists(folder.path() + "/runs")) ::usleep(1000);
      ::raise(SIGKILL);
    });
    run_program({"/bin/sh", "-c", "touch $TMPDIR/runs; sleep 1"}, "/dev/null", folder);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto others = [&] {
    return WEXITSTATUS(with_folder_in(base, [&](const TemporaryFolder&) { ::_exit(entries()); }));
  };
  EXPECT_EQ(others(), 2);  // the left one, and its own, which stays behind as well
  int left = 0;
  for (int tries = 0; tries < 100; ++tries) {
    ::usleep(50000);
    if ((left = others()) == 1) break;
  }
  EXPECT_EQ(left, 1);  // each removes those before it
}

TEST(TemporaryFolders, AreRefusedWhereNoneCanBeMade) {
  const char* before = ::getenv("TMPDIR");
  const std::string kept = before ? before : "";
  ::setenv("TMPDIR", "/no/such", 1);
  const auto folder = TemporaryFolder::create();
  if (before)
    ::setenv("TMPDIR", kept.c_str(), 1);
  else
    ::unsetenv("TMPDIR");
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.error().code, Code::kUsage);
  EXPECT_THAT(folder.error().text(), testing::HasSubstr("/no/such"));
}

}  // namespace
}  // namespace obelisk
