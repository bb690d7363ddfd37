/// runtime/cpu/threads.h — how many threads a program is run by.
#pragma once

#include "runtime/program.h"

namespace obelisk::runtime::cpu {

/// How many of at most `most` threads pay: the predicted time of the lists that they share, and a
/// barrier a wave.
int threads_that_pay(const Program& program, int most);

}  // namespace obelisk::runtime::cpu
