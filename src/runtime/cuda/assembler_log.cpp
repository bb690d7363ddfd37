#include "runtime/cuda/assembler_log.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <sstream>

namespace obelisk::runtime::cuda {

std::vector<KernelReport> read_assembler_log(const std::string& log) {
  std::vector<KernelReport> kernels;
  const auto named = [&](const std::string& mangled) -> KernelReport& {
    // A C++ function's name stands in its mangled one: _ZN...10obk_body_3...
    std::string name = mangled;
    if (const size_t at = mangled.find("obk_body_"); at != std::string::npos) {
      size_t end = at + 9;
      while (end < mangled.size() && isdigit(static_cast<unsigned char>(mangled[end]))) ++end;
      name = mangled.substr(at, end - at);
    } else if (char* plain = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, nullptr)) {
      name = plain;  // (anonymous namespace)::obk::gemm16<false>(ObkLanes*, ObkGemm const&)
      free(plain);
      if (const size_t from = name.find("obk::"); from != std::string::npos)
        name = name.substr(from, name.find('(', from) - from);
    }
    for (KernelReport& known : kernels)
      if (known.name == name) return known;
    kernels.push_back({.name = name});
    return kernels.back();
  };
  const auto after = [](const std::string& line, const std::string& word) {
    const size_t at = line.find(word);
    return at == std::string::npos ? std::string() : line.substr(at + word.size());
  };
  /// The number before `word`.
  const auto number = [](const std::string& line, const std::string& word) -> int64_t {
    size_t at = line.find(word);
    if (at == std::string::npos) return 0;
    while (at > 0 && line[at - 1] == ' ') --at;
    size_t begin = at;
    while (begin > 0 && isdigit(static_cast<unsigned char>(line[begin - 1]))) --begin;
    return atoll(line.substr(begin, at - begin).c_str());
  };
  std::istringstream lines(log);
  std::string entry, function;
  for (std::string line; std::getline(lines, line);) {
    if (std::string name = after(line, "Compiling entry function '"); !name.empty())
      entry = function = name.substr(0, name.find('\''));
    else if (std::string of = after(line, "Function properties for "); !of.empty())
      function = of;
    else if (line.find("bytes spill stores") != std::string::npos && !function.empty())
      named(function).spill_bytes =
          number(line, "bytes spill stores") + number(line, "bytes spill loads");
    else if (line.find("Used ") != std::string::npos && !entry.empty()) {
      KernelReport& kernel = named(entry);
      kernel.registers = static_cast<int>(number(line, "registers"));
      kernel.smem_bytes = number(line, "bytes smem");
    }
  }
  return kernels;
}

Serialised serialised(const std::string& log) {
  Serialised found;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    // An injected arrive (C7519) orders registers before products and waits for none; all else of
    // C75xx makes products wait.
    if (line.find("(C75") == std::string::npos ||
        line.find("warpgroup.arrive is injected") != std::string::npos)
      continue;
    if (!found.any) found.first = line;
    found.any = true;
    bool named = false;
    for (const std::string_view kind : {"obk_kernel_", "obk_body_"}) {
      const size_t at = line.find(kind);
      if (at == std::string::npos || !isdigit(static_cast<unsigned char>(line[at + kind.size()])))
        continue;
      found.bodies.insert(atoi(line.c_str() + at + kind.size())), named = true;
      break;
    }
    found.known = found.known && named;
  }
  return found;
}

}  // namespace obelisk::runtime::cuda
