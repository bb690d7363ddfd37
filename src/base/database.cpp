#include "base/database.h"

#include <sqlite3.h>

#include <filesystem>

#include "base/log.h"

namespace obelisk {

Database::Database(const std::string& folder, const std::string& name, const char* schema,
                   const char* what) {
  if (folder.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  const std::string path = folder + "/" + name;
  constexpr int kPatience = 200;  // ms, where another process writes
  if (sqlite3_open(path.c_str(), &database_) == SQLITE_OK &&
      sqlite3_busy_timeout(database_, kPatience) == SQLITE_OK &&
      sqlite3_exec(database_, schema, nullptr, nullptr, nullptr) == SQLITE_OK)
    return;
  LOG(kInfo, "base", "{} are not kept: {}: {}", what, path,
      database_ ? sqlite3_errmsg(database_) : "out of memory");
  sqlite3_close(database_);
  database_ = nullptr;
}

Database::~Database() { sqlite3_close(database_); }

Statement::Statement(const Database& database, const char* text) {
  if (!database.open() ||
      sqlite3_prepare_v2(database.database_, text, -1, &statement_, nullptr) != SQLITE_OK)
    statement_ = nullptr;
}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::bind(int at, const std::string& text) {
  if (statement_)
    sqlite3_bind_text(statement_, at, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
  return *this;
}

Statement& Statement::bind(int at, int64_t number) {
  if (statement_) sqlite3_bind_int64(statement_, at, number);
  return *this;
}

Statement& Statement::bind(int at, double number) {
  if (statement_) sqlite3_bind_double(statement_, at, number);
  return *this;
}

bool Statement::row() { return statement_ && sqlite3_step(statement_) == SQLITE_ROW; }
bool Statement::run() { return statement_ && sqlite3_step(statement_) == SQLITE_DONE; }

int64_t Statement::integer(int column) const { return sqlite3_column_int64(statement_, column); }
double Statement::real(int column) const { return sqlite3_column_double(statement_, column); }

std::string Statement::text(int column) const {
  const unsigned char* text = sqlite3_column_text(statement_, column);
  return text ? std::string(reinterpret_cast<const char*>(text),
                            static_cast<size_t>(sqlite3_column_bytes(statement_, column)))
              : "";
}

}  // namespace obelisk
