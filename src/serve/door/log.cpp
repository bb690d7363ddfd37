#include "serve/door/log.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "serve/door/ledger.h"

namespace obelisk::serve::door {
namespace {

// Beyond this many lines a second the rest is counted: a flood of requests must not wait for a
// terminal.
constexpr int64_t kLinesASecond = 500;

constexpr const char* kNames[] = {"error", "warning", "info", "verbose"};

std::string timestamp() {
  const int64_t now = wall_ms();
  const time_t seconds = now / 1000;
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40];
  const size_t length = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", std::string_view(text, length), now % 1000);
}

int mask_of(const LogSettings& s) {
  return (s.error ? 1 : 0) | (s.warning ? 2 : 0) | (s.info ? 4 : 0) | (s.verbose > 0 ? 8 : 0);
}

}  // namespace

Log::Log(LogSettings settings) { set(settings); }
Log::~Log() {
  if (file_ > 2) close(file_);
}

bool Log::wants(Severity severity) const {
  return mask_.load(std::memory_order_relaxed) >> static_cast<int>(severity) & 1;
}

Log::Line::Line(Log* log, Severity severity, std::string_view event) : log_(log) {
  if (!log_) return;
  json_.open('{')
      .key("time")
      .value(timestamp())
      .key("level")
      .value(kNames[static_cast<int>(severity)])
      .key("event")
      .value(event);
}
Log::Line::~Line() {
  if (!log_) return;
  json_.close('}');
  json_.text += '\n';
  log_->write(std::move(json_.text));
}

void Log::write(std::string line) {
  const std::lock_guard lock(mutex_);
  if (const int64_t second = wall_ms() / 1000; second != second_) {
    if (left_out_ > 0)
      line.insert(
          0,
          fmt::format(
              "{{\"time\":\"{}\",\"level\":\"warning\",\"event\":\"log\",\"lines_left_out\":{}}}\n",
              timestamp(), left_out_));
    second_ = second, lines_ = 0, left_out_ = 0;
  }
  if (++lines_ > kLinesASecond) {
    ++left_out_;
    return;
  }
  // A log that cannot be written is no reason to stop serving.
  [[maybe_unused]] const auto written = ::write(file_, line.data(), line.size());
}

LogSettings Log::settings() const {
  const std::lock_guard lock(mutex_);
  return settings_;
}

bool Log::set(const LogSettings& settings) {
  const std::lock_guard lock(mutex_);
  if (settings.file != settings_.file) {
    const int file = settings.file.empty() ? 2
                                           : open(settings.file.c_str(),
                                                  O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return false;
    if (file_ > 2) close(file_);
    file_ = file;
  }
  settings_ = settings;
  mask_ = mask_of(settings);
  return true;
}

}  // namespace obelisk::serve::door
