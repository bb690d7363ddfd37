/// serve/times_store.h — how long programs took, kept from one process to the next: a small
/// database beside the machine code.
///
/// A time is of a program (by the hash of all that decides what it does), so many slots of so
/// many, and a processor or GPU; another version of any of them is another row. A store that cannot
/// be opened or written is none: times are measured again.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/base.h"
#include "serve/times.h"

struct sqlite3;

namespace obelisk::serve {

struct MeasuredTimes {
  Time alone{0}, beside{0};
};

class TimesStore {
 public:
  /// A file in the folder, made where it is missing; empty: none.
  explicit TimesStore(const std::string& folder);
  ~TimesStore();
  TimesStore(const TimesStore&) = delete;
  TimesStore& operator=(const TimesStore&) = delete;

  bool open() const { return database_ != nullptr; }
  std::optional<MeasuredTimes> find(const std::string& key);
  void keep(const std::string& key, const std::string& model, int batch, int width,
            MeasuredTimes times);

  static std::string key_of(const Hash& program, int width, int slots, const std::string& device);

 private:
  std::mutex mutex_;
  sqlite3* database_ = nullptr;
};

}  // namespace obelisk::serve
