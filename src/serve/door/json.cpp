#include "serve/door/json.h"

#include <cmath>

namespace obelisk::serve::door {

size_t character(std::string_view text) {
  const auto at = [&](size_t k) {
    return static_cast<unsigned char>(k < text.size() ? text[k] : 0);
  };
  const auto follows = [&](size_t k) { return (at(k) & 0xC0) == 0x80; };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first < 0xF0) {
    if (!follows(1) || !follows(2)) return 0;
    if ((first == 0xE0 && at(1) < 0xA0) || (first == 0xED && at(1) >= 0xA0)) return 0;
    return 3;
  }
  if (first >= 0xF0 && first < 0xF5) {
    if (!follows(1) || !follows(2) || !follows(3)) return 0;
    if ((first == 0xF0 && at(1) < 0x90) || (first == 0xF4 && at(1) >= 0x90)) return 0;
    return 4;
  }
  return 0;
}

void write_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const char c = text[0];
    size_t length = 1;
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (c == '\n')
      out += "\\n";
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else if (length = character(text); length > 0)
      out.append(text.substr(0, length));
    else
      out += "\\ufffd", length = 1;
    text.remove_prefix(length);
  }
  out += '"';
}

JsonWriter& JsonWriter::value(double number) {
  separate();
  if (!std::isfinite(number)) {
    text += "null";
    return *this;
  }
  char digits[40];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
  return *this;
}

}  // namespace obelisk::serve::door
