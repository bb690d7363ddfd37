#include "base/units.h"

#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

namespace obelisk {

std::string to_string(Bytes bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (std::llabs(bytes.count) < 1024) return fmt::format("{} B", bytes.count);
  double amount = static_cast<double>(bytes.count) / 1024;
  int unit = 0;
  // 1023.95 would print as "1024.0" of the smaller unit.
  while (std::fabs(amount) >= 1023.95 && unit < 5) {
    amount /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", amount, kUnits[unit]);
}

}  // namespace obelisk
