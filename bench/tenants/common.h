// What the programs of this folder have in common: files, lists of the command line, quantiles.
#pragma once

#include <obelisk/obelisk.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

using Bytes = std::vector<std::byte>;

/// What the program `tenants` does by another first word, each in a file of its name.
int super_kernels(int argc, char** argv);
int mixes(int argc, char** argv);

/// The words of a command line, one after another.
class Words {
 public:
  Words(int argc, char** argv) : words_(argv, argv + argc) {}
  bool next() { return ++at_ < words_.size(); }
  const std::string& word() const { return words_[at_]; }
  /// The same as a number of at least 1. Throws where it is none.
  int count() {
    const std::string flag = word(), text = value();
    size_t read = 0;
    int number = 0;
    try {
      number = std::stoi(text, &read);
    } catch (const std::exception&) {  // no number, or beyond an int
    }
    if (number < 1 || read != text.size())
      throw std::invalid_argument(flag + " is '" + text + "', a number of at least 1 is wanted");
    return number;
  }
  /// What stands behind a flag. Throws where nothing does.
  std::string value() {
    if (at_ + 1 >= words_.size()) throw std::invalid_argument(word() + " wants a value");
    return words_[++at_];
  }

 private:
  std::vector<std::string> words_;
  size_t at_ = 0;  // the program's name
};

/// What main() does: the exit of `measure`, or 2 with its error.
inline int exit_of(const char* program, int (*measure)(int, char**), int argc, char** argv) {
  try {
    return measure(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 2;
  }
}

inline Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read");
  const std::vector<char> got{std::istreambuf_iterator<char>(file), {}};
  Bytes bytes(got.size());
  if (!got.empty()) std::memcpy(bytes.data(), got.data(), got.size());
  return bytes;
}

/// The bytes of all outputs, in the model's order.
inline std::vector<Bytes> outputs_of(const obelisk::Response& response) {
  std::vector<Bytes> outputs;
  for (const obelisk::Port& port : response.outputs()) {
    const auto bytes = response.output_bytes(port.name);
    outputs.emplace_back(bytes.begin(), bytes.end());
  }
  return outputs;
}

/// What stands between commas; nothing of what is empty.
inline std::vector<std::string> split(const std::string& text, char between = ',') {
  std::vector<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(between, at), text.size());
    if (end > at) out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}
inline std::vector<int> numbers(const std::string& text) {
  std::vector<int> out;
  for (const std::string& each : split(text)) out.push_back(std::stoi(each));
  return out;
}

inline double us(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::micro>(time).count();
}
/// The value below which `part` of them lie; 0 of none.
inline double quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(std::lround(part * static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}
