/// base/database.h — one SQLite file that several processes may write.
///
/// What it keeps can be made again: a file that cannot be opened or written is none, and says so
/// once, in the log.
#pragma once

#include <cstdint>
#include <string>

struct sqlite3;
struct sqlite3_stmt;

namespace obelisk {

class Database {
 public:
  /// `folder`/`name`, made where it is missing, with the tables that `schema` makes; an empty
  /// folder: none. `what` is said of what is then not kept.
  Database(const std::string& folder, const std::string& name, const char* schema,
           const char* what);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  bool open() const { return database_ != nullptr; }

 private:
  friend class Statement;
  sqlite3* database_ = nullptr;
};

/// A prepared statement, ended with its scope. Of a database that is not open: every step is none.
class Statement {
 public:
  Statement(const Database& database, const char* text);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  /// `at` counts from 1.
  Statement& bind(int at, const std::string& text);
  Statement& bind(int at, int64_t number);
  Statement& bind(int at, double number);
  /// The next row, if there is one.
  bool row();
  /// Of a statement without rows: whether it was carried out.
  bool run();

  /// Of the row; `column` counts from 0.
  int64_t integer(int column) const;
  double real(int column) const;
  std::string text(int column) const;

 private:
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace obelisk
