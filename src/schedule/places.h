/// schedule/places.h — where what lives for some waves lies in one memory.
#pragma once

#include <cstdint>
#include <vector>

namespace obelisk::schedule {

/// Bytes that are wanted in waves first .. last.
struct Living {
  int64_t size = 0;
  int first = 0, last = 0;
  int64_t offset = 0;  // the answer
};

/// Largest first, each at the lowest multiple of `align` where nothing lies that lives in the same waves. Gives the bytes of all.
int64_t place_living(std::vector<Living>& all, int64_t align);

}  // namespace obelisk::schedule
