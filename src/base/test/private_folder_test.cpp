#include "base/private_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/temporary_folder.h"

namespace obelisk {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class PrivateFolders : public testing::Test {
 protected:
  PrivateFolders() : outer(TemporaryFolder::create().value()), path(outer.path() + "/a/cache") {}
  std::shared_ptr<const PrivateFolder> open() const {
    auto folder = PrivateFolder::open(path);
    EXPECT_TRUE(folder.ok()) << folder.error().text();
    return folder.ok() ? *folder : nullptr;
  }
  static unsigned mode(const std::string& file) {
    struct stat about {};
    EXPECT_EQ(::stat(file.c_str(), &about), 0);
    return about.st_mode & 07777;
  }
  TemporaryFolder outer;
  std::string path;
};

TEST_F(PrivateFolders, GiveBackWhatWasPut) {
  const std::string bytes("with\0zeros", 10);
  ASSERT_TRUE(open()->put("one", bytes).ok());
  ASSERT_TRUE(open()->put("empty", "").ok());
  EXPECT_EQ(open()->get("one"), bytes);
  EXPECT_EQ(open()->get("empty"), "");
  EXPECT_EQ(open()->get("two"), std::nullopt);
  EXPECT_EQ(mode(path), 0700u);
  EXPECT_EQ(mode(path + "/key"), 0600u);
  EXPECT_EQ(fs::file_size(path + "/key"), 32u);
}

TEST_F(PrivateFolders, NoticeWhatWasNotPut) {
  const auto folder = open();
  ASSERT_TRUE(folder->put("one", "some bytes").ok());
  const std::string whole = read_file(path + "/one").value();
  const auto put = [&](const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(write_file(path + "/" + name, bytes).ok());
  };
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] ^= 1;
    put("one", changed);
    EXPECT_EQ(folder->get("one"), std::nullopt) << at;
  }
  for (size_t length = 0; length < whole.size(); ++length) {
    put("one", whole.substr(0, length));
    EXPECT_EQ(folder->get("one"), std::nullopt) << length;
  }
  put("one", whole);
  EXPECT_EQ(folder->get("one"), "some bytes");
  put("other", whole);
  EXPECT_EQ(folder->get("other"), std::nullopt) << "an entry under another's name";
  fs::create_symlink(path + "/one", path + "/link");
  EXPECT_EQ(folder->get("link"), std::nullopt);
  fs::create_directory(path + "/folder");
  EXPECT_EQ(folder->get("folder"), std::nullopt);
  // Of another key: a folder of somebody else, copied.
  ASSERT_TRUE(write_file(path + "/key", std::string(32, 'k')).ok());
  fs::permissions(path + "/key", fs::perms::owner_read);
  EXPECT_EQ(open()->get("one"), std::nullopt);
}

TEST_F(PrivateFolders, ThatOthersCanWriteToAreRefused) {
  fs::create_directories(path);
  const auto error = [&] {
    const auto folder = PrivateFolder::open(path);
    return folder.ok() ? "" : folder.error().text();
  };
  for (const unsigned open : {0777u, 0770u, 0702u, 01777u}) {
    ASSERT_EQ(::chmod(path.c_str(), open), 0);
    EXPECT_THAT(error(), HasSubstr("can be written by others")) << open;
    EXPECT_THAT(error(), HasSubstr("chmod 700 '" + path)) << open;
    EXPECT_TRUE(fs::is_empty(path));
  }
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  EXPECT_EQ(error(), "");
  ASSERT_EQ(::chmod((path + "/key").c_str(), 0644), 0);
  EXPECT_THAT(error(), HasSubstr("no key that only this user can read"));
  ASSERT_TRUE(fs::remove(path + "/key"));
  fs::create_symlink(path + "/gone", path + "/key");
  EXPECT_THAT(error(), HasSubstr("no key that only this user can read"));
  EXPECT_FALSE(fs::exists(path + "/gone"));
  path = outer.path() + "/file";
  ASSERT_TRUE(write_file(path, "x").ok());
  EXPECT_THAT(error(), HasSubstr("cannot be opened"));
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  path = outer.path() + "/given";
  fs::create_directory(path);
  ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  EXPECT_THAT(error(), HasSubstr("belongs to user 12345"));
}

}  // namespace
}  // namespace obelisk
