#include "base/text.h"

#include <set>

#include "base/check.h"

namespace obelisk {
namespace {

// The blanks after the last newline.
std::string_view last_indentation(std::string_view text) {
  const size_t line = text.rfind('\n');
  return text.substr(line == std::string_view::npos ? 0 : line + 1);
}

bool stands_at_line_start(std::string_view text, bool first) {
  const size_t line = text.rfind('\n');
  if (line == std::string_view::npos && !first) return false;
  const size_t start = line == std::string_view::npos ? 0 : line + 1;
  return text.substr(start).find_first_not_of(' ') == std::string_view::npos;
}

}  // namespace

Template::Template(std::string_view text) {
  while (true) {
    const size_t open = text.find("${");
    Piece piece{.text = std::string(text.substr(0, open))};
    if (open == std::string_view::npos) {
      pieces_.push_back(std::move(piece));
      return;
    }
    const size_t close = text.find('}', open);
    CHECK(close != std::string_view::npos, "a blank without its end: {}", text.substr(open, 40));
    piece.blank = text.substr(open + 2, close - open - 2);
    CHECK(!piece.blank.empty(), "a blank without a name");
    text.remove_prefix(close + 1);
    piece.whole_line =
        stands_at_line_start(piece.text, pieces_.empty()) && (text.empty() || text.front() == '\n');
    pieces_.push_back(std::move(piece));
  }
}

std::string Template::fill(const Names& names) const {
  std::string out;
  std::set<std::string_view> used;
  bool drop_newline = false;
  for (const Piece& piece : pieces_) {
    std::string_view text = piece.text;
    if (drop_newline && !text.empty()) text.remove_prefix(1);
    drop_newline = false;
    if (piece.blank.empty()) {
      out += text;
      break;
    }
    const auto found = names.find(piece.blank);
    CHECK(found != names.end(), "the blank '{}' is not filled", piece.blank);
    used.insert(found->first);
    if (!piece.whole_line) {
      out += text;
      out += found->second;
      continue;
    }
    const std::string_view margin = last_indentation(text);
    out += text.substr(0, text.size() - margin.size());
    std::string_view value = found->second;
    drop_newline = value.empty();
    if (value.ends_with('\n')) value.remove_suffix(1);
    out += indent(value, static_cast<int>(margin.size()));
  }
  for (const auto& [name, value] : names) {
    CHECK(used.contains(name), "there is no blank '{}'", name);
  }
  return out;
}

std::string indent(std::string_view text, int spaces) {
  std::string out;
  bool line_start = true;
  for (const char letter : text) {
    if (line_start && letter != '\n') out.append(static_cast<size_t>(spaces), ' ');
    out += letter;
    line_start = letter == '\n';
  }
  return out;
}

std::string join(const std::vector<std::string>& parts, std::string_view between) {
  std::string out;
  for (const std::string& part : parts) {
    if (&part != &parts.front()) out += between;
    out += part;
  }
  return out;
}

}  // namespace obelisk
