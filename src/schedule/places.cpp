#include "schedule/places.h"

namespace obelisk::schedule {

int64_t place_living(std::vector<Living>& all, int64_t align) {
  return first_fit(all, align, [&](size_t a, size_t b) {
    return all[a].first <= all[b].last && all[b].first <= all[a].last;
  });
}

}  // namespace obelisk::schedule
