#include "runtime/cpu/profile.h"

#include <stdlib.h>

#include <algorithm>
#include <map>
#include <string>

namespace obelisk::runtime::cpu {
namespace {

constexpr size_t kRows = 20;

}  // namespace

std::unique_ptr<Profile> Profile::if_wished(const Program& program, int workers) {
  const char* wish = getenv("OBELISK_PROFILE");
  if (!wish || !*wish || std::string(wish) == "0") return nullptr;
  auto profile = std::make_unique<Profile>();
  profile->workers_.resize(workers);
  for (Sums& sums : profile->workers_) sums.by_work.assign(program.works.size(), 0);
  return profile;
}

void Profile::print(const Program& program) const {
  if (runs_ == 0) return;
  struct Row {
    std::string label;
    double us = 0, slowest_us = 0;
    int works = 0;
    size_t slowest = 0;
  };
  std::map<std::pair<int32_t, int32_t>, Row> rows;  // by body; customs each by themselves
  double total = 0, waiting = 0;
  const double per_run = 1e-3 / static_cast<double>(runs_);
  for (const Sums& sums : workers_) waiting += sums.waiting * per_run;
  for (size_t w = 0; w < program.works.size(); ++w) {
    const WorkRecord& work = program.works[w];
    Row& row = rows[{work.body, work.custom}];
    row.label = work.body >= 0 ? program.bodies[work.body].label
                               : "reference of " + program.customs[work.custom].name;
    double us = 0;
    for (const Sums& sums : workers_) us += sums.by_work[w] * per_run;
    row.us += us;
    total += us;
    ++row.works;
    if (us >= row.slowest_us) row.slowest_us = us, row.slowest = w;
  }
  std::vector<Row> sorted;
  for (auto& [key, row] : rows) sorted.push_back(std::move(row));
  std::sort(sorted.begin(), sorted.end(), [](const Row& a, const Row& b) { return a.us > b.us; });
  const double all = std::max(total + waiting, 1e-9);
  fmt::print(stderr,
             "profile of {}: {} runs, {} waves, {:.1f} us of work and {:.1f} us at barriers a run, "
             "all {} workers\n",
             program.name, runs_, program.waves, total, waiting, workers_.size());
  fmt::print(stderr, "{:>10} {:>6} {:>6}  {:>10} {:>6}  {}\n", "us", "share", "works", "slowest",
             "work", "body");
  for (size_t k = 0; k < std::min(sorted.size(), kRows); ++k) {
    const Row& row = sorted[k];
    fmt::print(stderr, "{:>10.1f} {:>5.1f}% {:>6}  {:>10.1f} {:>6}  {}\n", row.us,
               100 * row.us / all, row.works, row.slowest_us, row.slowest,
               row.label.substr(0, 120));
  }
}

}  // namespace obelisk::runtime::cpu
