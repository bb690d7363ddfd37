#include "base/log.h"

#include <cstdio>
#include <cstdlib>

namespace obelisk {

LogLevel log_level() {
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
  static constexpr std::string_view kNames[] = {"warning", "info", "debug"};
  // One call for the whole line, so that lines of several threads do not mix.
  const std::string line =
      fmt::format("[{}] {}: {}\n", kNames[static_cast<int>(level)], room, text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace obelisk
