/// base/log.h — one line per event, tagged with its room, to stderr or to who asked for it; quiet
/// unless OBELISK_LOG=info|debug.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace obelisk {

enum class LogLevel : int { kWarning = 0, kInfo = 1, kDebug = 2 };
LogLevel log_level();  // from the environment variable OBELISK_LOG, read once
void log_line(LogLevel level, std::string_view room, std::string_view text);

/// Takes lines in place of stderr, on whichever thread they arise and one at a time; null: stderr
/// again. It may not log.
using LogSink = void (*)(LogLevel level, const char* room, const char* text, void* user);
void set_log(LogSink sink, void* user, LogLevel most);

// LOG(kInfo, "runtime", "compiled {} bodies in {} ms", n, ms)
#define LOG(level, room, ...)                                                          \
  do {                                                                                 \
    if (::obelisk::LogLevel::level <= ::obelisk::log_level())                          \
      ::obelisk::log_line(::obelisk::LogLevel::level, room, fmt::format(__VA_ARGS__)); \
  } while (false)

}  // namespace obelisk
