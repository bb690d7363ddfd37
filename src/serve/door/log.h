/// serve/door/log.h — structured logs: a line of JSON an event, on stderr or in a file.
///
///   log.info("model").field("model", name).field("state", "ready");
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "serve/door/json.h"

namespace obelisk::serve::door {

enum class Severity { kError, kWarning, kInfo, kVerbose };

struct LogSettings {
  bool error = true, warning = true, info = true;
  int verbose = 0;   // 1: every request
  std::string file;  // empty: stderr
};

class Log {
 public:
  explicit Log(LogSettings settings);
  ~Log();
  Log(const Log&) = delete;

  class Line {
   public:
    Line(Log* log, Severity severity, std::string_view event);
    Line(Line&& other) noexcept : log_(other.log_), json_(std::move(other.json_)) {
      other.log_ = nullptr;
    }
    ~Line();
    template <typename T>
    Line&& field(std::string_view name, const T& value) && {
      if (log_) json_.key(name).value(value);
      return std::move(*this);
    }

   private:
    Log* log_;  // null: this line is not wanted
    JsonWriter json_;
  };
  Line error(std::string_view event) {
    return {wants(Severity::kError) ? this : nullptr, Severity::kError, event};
  }
  Line warning(std::string_view event) {
    return {wants(Severity::kWarning) ? this : nullptr, Severity::kWarning, event};
  }
  Line info(std::string_view event) {
    return {wants(Severity::kInfo) ? this : nullptr, Severity::kInfo, event};
  }
  Line verbose(std::string_view event) {
    return {wants(Severity::kVerbose) ? this : nullptr, Severity::kVerbose, event};
  }
  bool wants(Severity severity) const;

  LogSettings settings() const;
  /// False where its file cannot be opened; then nothing changes.
  bool set(const LogSettings& settings);

 private:
  void write(std::string line);
  mutable std::mutex mutex_;
  LogSettings settings_;
  std::atomic<int> mask_{0};
  int file_ = 2;
  int64_t second_ = 0, lines_ = 0, left_out_ = 0;
};

}  // namespace obelisk::serve::door
