/// schedule/dispatch_lanes.h — lanes numbered and bounded, whichever policy made them.
#pragma once

#include "schedule/dispatch.h"

namespace obelisk::schedule {

/// Lanes in the order of their first kernel; a kernel that `order` lacks may have none, -1.
void number_lanes(const std::vector<int>& order, Lanes& lanes);

/// At most `most` lanes: chains, by when they begin, go behind a lane that has ended by then, else
/// beside the fewest kernels.
void bound_lanes(const std::vector<int>& order, int most, Lanes& lanes);

}  // namespace obelisk::schedule
