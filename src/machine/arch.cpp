#include "machine/arch.h"

#include <charconv>

#include <fmt/format.h>

namespace obelisk::machine {

std::optional<Arch> parse_arch(std::string_view name) {
  constexpr std::string_view kPrefix = "sm_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  Arch arch;
  if (!name.empty() && (name.back() == 'a' || name.back() == 'f')) {
    arch.suffix = name.back();
    name.remove_suffix(1);
  }
  constexpr size_t kMostDigits = 3;
  if (name.size() < 2 || name.size() > kMostDigits || name.front() == '0') return std::nullopt;
  int number = 0;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (code != std::errc() || end != name.data() + name.size() || number < 0) return std::nullopt;
  arch.major = number / 10;  // the last digit is the minor version
  arch.minor = number % 10;
  return arch;
}

std::string to_string(const Arch& arch) {
  return fmt::format("sm_{}{}{}", arch.major, arch.minor,
                     arch.suffix ? std::string(1, arch.suffix) : "");
}

bool runs(const Arch& gpu, const Arch& code) {
  if (code.suffix != 0) return gpu == code;
  return gpu.major == code.major && gpu.minor >= code.minor;
}

}  // namespace obelisk::machine
