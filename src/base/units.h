/// base/units.h — quantities carry their unit in the type.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>

namespace obelisk {

using Nanos = std::chrono::duration<double, std::nano>;

struct Bytes {
  int64_t count = 0;
  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes operator+(Bytes other) const { return {count + other.count}; }
  constexpr Bytes operator*(int64_t times) const { return {count * times}; }
};
constexpr Bytes operator""_KiB(unsigned long long n) { return {static_cast<int64_t>(n) << 10}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return {static_cast<int64_t>(n) << 20}; }
constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
std::string to_string(Bytes bytes);  // "43.0 MiB"

struct Flops {
  double count = 0;
  constexpr auto operator<=>(const Flops&) const = default;
  constexpr Flops operator+(Flops other) const { return {count + other.count}; }
};

}  // namespace obelisk
