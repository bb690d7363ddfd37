#include "serve/times_store.h"

namespace obelisk::serve {
namespace {

/// Files of before runs gave way have a table of another name, which is left alone.
constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS times_2 (key TEXT PRIMARY KEY, model TEXT, batch INTEGER, width "
    "INTEGER, alone_ns INTEGER, beside_ns INTEGER, segment_ns INTEGER)";

}  // namespace

TimesStore::TimesStore(const std::string& folder)
    : database_(folder, "times.sqlite", kSchema, "times of programs") {}

std::string TimesStore::key_of(const Hash& program, int width, int slots,
                               const std::string& device) {
  return to_string(hash_text(
      fmt::format("{} {} {} {} {}", to_string(program), width, slots, device, OBELISK_VERSION)));
}

std::optional<MeasuredTimes> TimesStore::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  Statement select(database_, "SELECT alone_ns, beside_ns, segment_ns FROM times_2 WHERE key = ?");
  if (!select.bind(1, key).row()) return std::nullopt;
  const MeasuredTimes times{Time(select.integer(0)), Time(select.integer(1)),
                            Time(select.integer(2))};
  for (const Time time : {times.alone, times.beside, times.segment})
    if (time <= Time(0)) return std::nullopt;  // not ours
  return times;
}

void TimesStore::keep(const KeptTimes& program) {
  std::lock_guard lock(mutex_);
  Statement(database_, "INSERT OR REPLACE INTO times_2 VALUES (?, ?, ?, ?, ?, ?, ?)")
      .bind(1, program.key)
      .bind(2, program.model)
      .bind(3, int64_t{program.batch})
      .bind(4, int64_t{program.width})
      .bind(5, int64_t{program.times.alone.count()})
      .bind(6, int64_t{program.times.beside.count()})
      .bind(7, int64_t{program.times.segment.count()})
      .run();
}

}  // namespace obelisk::serve
