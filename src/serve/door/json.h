/// serve/door/json.h — JSON as it is written: keys and values in order, commas by themselves.
///
///   JsonWriter json; json.open('{').key("name").value("m").key("shape").array(shape).close('}');
///   json.text
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

#include "base/base.h"

namespace obelisk::serve::door {

/// Bytes of the UTF-8 character that a text begins with, 0 where it begins with none.
size_t character(std::string_view text);

/// As a string of JSON, quotes included. Bytes that are no UTF-8 become U+FFFD.
void write_string(std::string& out, std::string_view text);

struct JsonWriter {
  std::string text;

  JsonWriter& open(char bracket) {
    separate();
    text += bracket;
    first_ = true;
    return *this;
  }
  JsonWriter& close(char bracket) {
    text += bracket;
    first_ = false;
    return *this;
  }
  JsonWriter& key(std::string_view name) {
    separate();
    write_string(text, name);
    text += ':';
    first_ = true;
    return *this;
  }
  JsonWriter& value(std::string_view string) {
    separate();
    write_string(text, string);
    return *this;
  }
  JsonWriter& value(const char* string) { return value(std::string_view(string)); }
  JsonWriter& value(const std::string& string) { return value(std::string_view(string)); }
  JsonWriter& value(bool yes) {
    separate();
    text += yes ? "true" : "false";
    return *this;
  }
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  JsonWriter& value(T number) {
    separate();
    char digits[24];
    text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
    return *this;
  }
  JsonWriter& value(double number);  // null where it is not finite
  JsonWriter& array(const Shape& shape) {
    open('[');
    for (int64_t extent : shape) value(extent);
    return close(']');
  }
  /// Text that is JSON already.
  JsonWriter& raw(std::string_view json) {
    separate();
    text += json;
    return *this;
  }

 private:
  void separate() {
    if (!first_) text += ',';
    first_ = false;
  }
  bool first_ = true;
};

}  // namespace obelisk::serve::door
