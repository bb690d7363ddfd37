#include "schedule/places.h"

#include <algorithm>
#include <numeric>

namespace obelisk::schedule {

int64_t place_living(std::vector<Living>& all, int64_t align) {
  const auto room = [&](const Living& one) { return (one.size + align - 1) / align * align; };
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return all[a].size > all[b].size; });
  int64_t end = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    Living& mine = all[order[k]];
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (size_t before = 0; before < k; ++before) {
      const Living& other = all[order[before]];
      if (other.first <= mine.last && mine.first <= other.last) taken.push_back({other.offset, other.offset + room(other)});
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

}  // namespace obelisk::schedule
