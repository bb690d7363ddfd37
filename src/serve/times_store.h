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
#include "base/database.h"
#include "serve/times.h"

namespace obelisk::serve {

struct MeasuredTimes {
  Time alone{0}, beside{0}, segment = kNever;
};

/// As they are kept: of a program of so many rows on so many slots.
struct KeptTimes {
  std::string key, model;
  int batch = 0, width = 0;
  MeasuredTimes times;
};

/// Keeping one takes milliseconds: it is on the disk then.
class TimesStore {
 public:
  /// A file in the folder, made where it is missing; empty: none.
  explicit TimesStore(const std::string& folder);

  bool open() const { return database_.open(); }
  std::optional<MeasuredTimes> find(const std::string& key);
  void keep(const KeptTimes& program);

  static std::string key_of(const Hash& program, int width, int slots, const std::string& device);

 private:
  std::mutex mutex_;
  Database database_;
};

}  // namespace obelisk::serve
