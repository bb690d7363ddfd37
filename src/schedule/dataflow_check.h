/// schedule/dataflow_check.h — whether a dataflow table is sound.
#pragma once

#include "schedule/schedule.h"

namespace obelisk::schedule {

/// Of a dataflow table: whatever a worker reads was broadcast, or computed by itself before.
/// Errors: kBuild.
Status validate_dataflow(const stitch::Plan& plan, const TaskGraph& tasks);

}  // namespace obelisk::schedule
