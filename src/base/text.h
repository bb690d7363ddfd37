/// base/text.h — text with named blanks, for what writes source code.
///
///   Template("for (int ${i} = 0; ${i} < ${n}; ++${i}) {\n  ${body}\n}\n").fill({{"i", "k"}, {"n",
///   "8"}, {"body", lines}})
///
/// A blank that stands alone on its line gives its indentation to every line of its value; an empty
/// value drops that line. Every blank must be filled and every name given must be a blank: anything
/// else is our bug and stops in a CHECK. A lone `$` is text.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace obelisk {

class Template {
 public:
  explicit Template(std::string_view text);
  using Names = std::map<std::string, std::string, std::less<>>;
  std::string fill(const Names& names) const;

 private:
  struct Piece {
    std::string text;   // before the blank
    std::string blank;  // its name; empty in the last piece
    bool whole_line = false;
  };
  std::vector<Piece> pieces_;
};

/// Puts `spaces` blanks before every line that is not empty.
std::string indent(std::string_view text, int spaces);

std::string join(const std::vector<std::string>& parts, std::string_view between);

}  // namespace obelisk
