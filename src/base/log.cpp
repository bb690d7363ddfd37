#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

namespace obelisk {

namespace {

std::mutex mutex;  // guards `sink` and `user`
LogSink sink = nullptr;
void* user = nullptr;
std::atomic<int> most_for_sink{-1};  // -1: there is none

}  // namespace

void set_log(LogSink to, void* with, LogLevel most) {
  std::lock_guard lock(mutex);
  sink = to, user = with;
  most_for_sink.store(to ? static_cast<int>(most) : -1, std::memory_order_relaxed);
}

LogLevel log_level() {
  if (const int most = most_for_sink.load(std::memory_order_relaxed); most >= 0)
    return static_cast<LogLevel>(most);
  static const LogLevel level = [] {
    const char* wish = std::getenv("OBELISK_LOG");
    const std::string_view text = wish != nullptr ? wish : "";
    if (text == "debug") return LogLevel::kDebug;
    if (text == "info") return LogLevel::kInfo;
    return LogLevel::kWarning;
  }();
  return level;
}

void log_line(LogLevel level, std::string_view room, std::string_view text) {
  {
    std::lock_guard lock(mutex);
    if (sink) return sink(level, std::string(room).c_str(), std::string(text).c_str(), user);
  }
  static constexpr std::string_view kNames[] = {"warning", "info", "debug"};
  // One call for the whole line, so that lines of several threads do not mix.
  const std::string line =
      fmt::format("[{}] {}: {}\n", kNames[static_cast<int>(level)], room, text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace obelisk
