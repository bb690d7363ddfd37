/// schedule/places.h — where what lives for some waves lies in one memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace obelisk::schedule {

/// Bytes that are wanted in waves first .. last.
struct Living {
  int64_t size = 0;
  int first = 0, last = 0;
  int64_t offset = 0;  // the answer
};

/// Largest first, each at the lowest multiple of `align` where it shares bytes with nothing that is
/// alive with it: `together(a, b)`, by index. Sets `offset` of each; gives the bytes of all.
template <typename T, typename Together>
int64_t first_fit(std::vector<T>& all, int64_t align, const Together& together) {
  const auto room = [&](const T& one) { return (one.size + align - 1) / align * align; };
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return all[a].size > all[b].size; });
  int64_t end = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    T& mine = all[order[k]];
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (size_t before = 0; before < k; ++before) {
      const T& other = all[order[before]];
      if (together(order[k], order[before]))
        taken.push_back({other.offset, other.offset + room(other)});
    }
    std::sort(taken.begin(), taken.end());
    mine.offset = 0;
    for (const auto& [low, high] : taken) {
      if (mine.offset + room(mine) <= low) break;
      mine.offset = std::max(mine.offset, high);
    }
    end = std::max(end, mine.offset + room(mine));
  }
  return end;
}

/// The same of what lives in common waves.
int64_t place_living(std::vector<Living>& all, int64_t align);

}  // namespace obelisk::schedule
