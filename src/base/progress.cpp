#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace obelisk {
namespace {

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(letter));
    } else {
      out += letter;
    }
  }
  return out + '"';
}

std::string duration_text(double seconds) {
  if (seconds < 1) return "less than 1 s left";
  if (seconds < 90) return fmt::format("about {:.0f} s left", seconds);
  if (seconds < 5400) return fmt::format("about {:.0f} min left", seconds / 60);
  return fmt::format("about {:.1f} h left", seconds / 3600);
}

size_t terminal_width(std::FILE* out) {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

Progress::Mode Progress::mode_for(std::FILE* out, bool json) {
  if (json) return Mode::kJson;
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return ::isatty(::fileno(out)) && !dumb ? Mode::kTerminal : Mode::kNone;
}

Progress::Progress(Mode mode, std::string verb, std::FILE* out, Now now)
    : mode_(mode), verb_(std::move(verb)), out_(out), now_(now), start_(now()), last_(start_) {}

Progress::~Progress() { finish(); }

void Progress::step(std::string_view what, double done) {
  if (mode_ == Mode::kNone) return;
  const Clock::time_point time = now_();
  const bool is_new = what != shown_;
  if (!is_new && time - last_ < std::chrono::milliseconds(100)) return;
  last_ = time;
  shown_ = what;
  done = std::clamp(done, 0.0, 1.0);
  const double elapsed = std::chrono::duration<double>(time - start_).count();
  // A guess from the first moments would be wild.
  const bool can_guess = done >= 0.05 && elapsed >= 0.5;
  const double left = can_guess ? elapsed * (1 - done) / done : 0;
  if (mode_ == Mode::kJson) {
    std::string line = fmt::format("{{\"progress\": {:.3f}, \"verb\": {}, \"step\": {}", done,
                                   json_text(verb_), json_text(what));
    line += fmt::format(", \"elapsed_s\": {:.2f}", elapsed);
    if (can_guess) line += fmt::format(", \"left_s\": {:.2f}", left);
    line += "}\n";
    std::fwrite(line.data(), 1, line.size(), out_);
  } else {
    std::string line = fmt::format("{} {:3.0f}% {}", verb_, done * 100, what);
    if (can_guess) line += fmt::format("   {}", duration_text(left));
    line.resize(std::min(line.size(), terminal_width(out_) - 1));
    line = "\r" + line + "\x1b[K";  // the rest of the older line is cleared
    std::fwrite(line.data(), 1, line.size(), out_);
  }
  std::fflush(out_);
}

void Progress::finish() {
  if (mode_ != Mode::kTerminal || shown_.empty()) return;
  std::fputs("\r\x1b[K", out_);
  std::fflush(out_);
  shown_.clear();
}

}  // namespace obelisk
