#include "serve/times_store.h"

#include <sqlite3.h>

#include <filesystem>

namespace obelisk::serve {
namespace {

/// A prepared statement, ended with its scope.
class Statement {
 public:
  Statement(sqlite3* database, const char* text) {
    if (sqlite3_prepare_v2(database, text, -1, &statement_, nullptr) != SQLITE_OK)
      statement_ = nullptr;
  }
  ~Statement() { sqlite3_finalize(statement_); }
  explicit operator bool() const { return statement_ != nullptr; }
  void bind(int at, const std::string& text) {
    sqlite3_bind_text(statement_, at, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
  }
  void bind(int at, int64_t number) { sqlite3_bind_int64(statement_, at, number); }
  int step() { return sqlite3_step(statement_); }
  int64_t number(int column) { return sqlite3_column_int64(statement_, column); }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace

TimesStore::TimesStore(const std::string& folder) {
  if (folder.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  const std::string path = folder + "/times.sqlite";
  constexpr int kPatience = 200;  // ms, where another process writes
  const char* table =
      "CREATE TABLE IF NOT EXISTS times (key TEXT PRIMARY KEY, model TEXT, batch INTEGER, width "
      "INTEGER, alone_ns INTEGER, beside_ns INTEGER)";
  if (sqlite3_open(path.c_str(), &database_) == SQLITE_OK &&
      sqlite3_busy_timeout(database_, kPatience) == SQLITE_OK &&
      sqlite3_exec(database_, table, nullptr, nullptr, nullptr) == SQLITE_OK)
    return;
  LOG(kInfo, "serve", "times are not kept: {}: {}", path,
      database_ ? sqlite3_errmsg(database_) : "out of memory");
  sqlite3_close(database_);
  database_ = nullptr;
}

TimesStore::~TimesStore() { sqlite3_close(database_); }

std::string TimesStore::key_of(const Hash& program, int width, int slots,
                               const std::string& device) {
  return to_string(hash_text(
      fmt::format("{} {} {} {} {}", to_string(program), width, slots, device, OBELISK_VERSION)));
}

std::optional<MeasuredTimes> TimesStore::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  if (!database_) return std::nullopt;
  Statement select(database_, "SELECT alone_ns, beside_ns FROM times WHERE key = ?");
  if (!select) return std::nullopt;
  select.bind(1, key);
  if (select.step() != SQLITE_ROW) return std::nullopt;
  const MeasuredTimes times{Time(select.number(0)), Time(select.number(1))};
  if (times.alone <= Time(0) || times.beside <= Time(0)) return std::nullopt;  // not ours
  return times;
}

void TimesStore::keep(const std::string& key, const std::string& model, int batch, int width,
                      MeasuredTimes times) {
  std::lock_guard lock(mutex_);
  if (!database_) return;
  Statement insert(database_, "INSERT OR REPLACE INTO times VALUES (?, ?, ?, ?, ?, ?)");
  if (!insert) return;
  insert.bind(1, key), insert.bind(2, model);
  insert.bind(3, int64_t{batch}), insert.bind(4, int64_t{width});
  insert.bind(5, times.alone.count()), insert.bind(6, times.beside.count());
  insert.step();
}

}  // namespace obelisk::serve
