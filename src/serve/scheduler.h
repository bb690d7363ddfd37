/// serve/scheduler.h — what runs next, where, how wide, and with whom: a pure function.
///
///   in   Window (who waits, what runs), Times (how long programs take), the time, a Policy
///   out  Decisions: programs to be started now, requests that are given up, when to ask again
///
/// The engine, the simulator and the tests call the same two functions. Nothing here reads a clock,
/// takes a lock or remembers: the same arguments give the same decisions, so the record of a run
/// replays.
///
/// `vliw` in a few lines. Of requests without a deadline those of neglected tenants come first,
/// then those of tenants within their fair share, then the others; what was admitted with a
/// deadline stands with the second, and stragglers stand last; among these the smaller priority;
/// among these the least slack, in bins of powers of two, so that near-equals are ordered by what
/// suits the machine: the longer run first, and what streams memory beside what multiplies. The
/// chosen model's requests become one batch. Its width is its part of the free slots: all of them
/// when nobody else waits, fewer when others do, more again when the deadline requires it; who is
/// likely to come soon counts as waiting. Where there is no room for all, what takes least of the
/// machine for a row. Starts whose programs have the same code, of models with weights of their
/// own, share a launch. A request waits a few microseconds, from one to the next, where others of
/// its code have come so close behind one another of late, while nobody else wants the slots; they
/// start together when as many have come as do usually, or none any more. Who would meet a better
/// batch may be held while slack allows, if others take the slots meanwhile. Who is neglected and
/// finds too few free slots gets those reserved that become free next: others fill the gap if they
/// end before. Who has a deadline and would be late on slots that become free runs beside the
/// programs that have them, where the hardware can do so, or within one: that gives way between two
/// of its parts, and goes on behind it.
#pragma once

#include <optional>

#include "serve/window.h"

namespace obelisk::serve {

Decisions decide(const Window& window, const Times& times, Time now, const Policy& policy);

/// Whether a request that arrives is taken. `queue_limit`: of its model.
struct Admission {
  bool taken = true;
  Why why = Why::kInTurn;
  std::optional<Time> retry_after;  // when it could be met, if nothing else comes
};
Admission admit(const Window& window, const Times& times, Time now, const Policy& policy,
                const Job& job, int queue_limit);

/// The shortest time of a run that holds so many rows, kNever without one.
Time quickest(const ModelTimes& model, int rows);

}  // namespace obelisk::serve
