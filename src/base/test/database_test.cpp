#include "base/database.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/temporary_folder.h"

namespace obelisk {
namespace {

constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS things (name TEXT PRIMARY KEY, many INTEGER, share REAL)";

TEST(Database, WhatOneProcessKeepsAnotherFinds) {
  const auto folder = TemporaryFolder::create();
  ASSERT_TRUE(folder.ok());
  {
    const Database first(folder->path() + "/made", "things.sqlite", kSchema, "things");
    ASSERT_TRUE(first.open());
    EXPECT_TRUE(Statement(first, "INSERT INTO things VALUES (?, ?, ?)")
                    .bind(1, std::string("a \"quoted\" name"))
                    .bind(2, int64_t{1} << 40)
                    .bind(3, 0.125)
                    .run());
    EXPECT_FALSE(Statement(first, "INSERT INTO things VALUES ('a \"quoted\" name', 0, 0)").run());
  }
  const Database second(folder->path() + "/made", "things.sqlite", kSchema, "things");
  Statement select(second, "SELECT name, many, share FROM things WHERE many > ?");
  ASSERT_TRUE(select.bind(1, int64_t{1}).row());
  EXPECT_EQ(select.text(0), "a \"quoted\" name");
  EXPECT_EQ(select.integer(1), int64_t{1} << 40);
  EXPECT_EQ(select.real(2), 0.125);
  EXPECT_FALSE(select.row());
}

TEST(Database, OneThatCannotBeOpenedKeepsNothing) {
  const auto folder = TemporaryFolder::create();
  ASSERT_TRUE(folder.ok());
  std::filesystem::create_directory(folder->path() + "/things.sqlite");  // no file can be there
  for (const std::string& where : {folder->path(), std::string()}) {
    const Database none(where, "things.sqlite", kSchema, "things");
    EXPECT_FALSE(none.open());
    EXPECT_FALSE(Statement(none, "INSERT INTO things VALUES ('a', 1, 1)").run());
    EXPECT_FALSE(Statement(none, "SELECT name FROM things").row());
  }
}

}  // namespace
}  // namespace obelisk
