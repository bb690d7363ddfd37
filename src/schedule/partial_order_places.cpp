#include "schedule/partial_order_places.h"

#include <algorithm>

#include "schedule/places.h"

namespace obelisk::schedule {
namespace {

/// For each buffer the works that all of its users lead to.
std::vector<std::vector<uint64_t>> followers(const std::vector<Used>& all,
                                             const Reachability& reaches) {
  std::vector<std::vector<uint64_t>> out;
  for (const Used& one : all) {
    std::vector<uint64_t> bits(reaches.words(), one.users.empty() ? 0 : ~uint64_t{0});
    for (const int user : one.users)
      for (int k = 0; k < reaches.words(); ++k) bits[k] &= reaches.row(user)[k];
    out.push_back(std::move(bits));
  }
  return out;
}

bool holds_all(const std::vector<uint64_t>& bits, const std::vector<int>& works) {
  return std::all_of(works.begin(), works.end(),
                     [&](int work) { return (bits[work / 64] >> (work % 64) & 1) != 0; });
}

}  // namespace

int64_t place_used(std::vector<Used>& all, const Reachability& reaches, int64_t align) {
  const std::vector<std::vector<uint64_t>> after = followers(all, reaches);
  return first_fit(all, align, [&](size_t a, size_t b) {
    return !holds_all(after[a], all[b].users) && !holds_all(after[b], all[a].users);
  });
}

}  // namespace obelisk::schedule
