/// tests/random/twin_task.h — how a program of this machine calls the twin of a device body
/// (twin.h).
#pragma once

#include <cstdint>

struct ObkTask;

/// One task, and what a kernel of its work knows beside it.
struct TwinTask {
  const ObkTask* task;
  const int64_t* params;
  void* const* operands;
  int64_t scratch, row_scratch;  // bytes: of the tile, of each group of lanes
  int32_t groups, sm, sms;
  bool table;  // its kernel has a table of tasks, whose works say how rows go to warps
};
/// What is wrong, or "": lives until the next call.
using TwinBody = const char* (*)(const TwinTask*);
