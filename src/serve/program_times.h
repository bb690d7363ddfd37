/// serve/program_times.h — what the scheduler, its plans and admission ask of measured times: which
/// of a model's programs a request may have, and how long they take.
#pragma once

#include <optional>

#include "serve/window.h"

namespace obelisk::serve {

inline Time scaled(Time time, double by) {
  return Time(static_cast<int64_t>(static_cast<double>(time.count()) * by));
}

/// Runs of a variant that so many rows take: more than one only where no larger batch is there yet.
int passes(const VariantTime& variant, int rows);
int largest(const ModelTimes& model);  // batch
/// Whether a request of so many rows may go to a variant.
bool holds(const ModelTimes& model, const VariantTime& variant, int rows);
/// The smallest batch that holds a request.
int smallest(const ModelTimes& model, int rows);
/// By what programs are slowed down that fill so many slots of a machine that has `slots`.
double crowded(int fill, int slots);
/// What a run takes: beside others where it leaves room for them, else as of late.
Time usual(const VariantTime& variant);
/// Whether a narrower program of the same batch is no slower: then the slots are wasted on it.
bool wasteful(const ModelTimes& model, const VariantTime& variant);
/// The longest until a run gives way to a request of a priority; nothing: it does not. It does so
/// to one at a time, and who runs within another to nobody.
std::optional<Time> gives_way(const Times& times, const Policy& policy, const Running& run,
                              int priority);
/// When a run will end, a little later than it is predicted to: by Policy::margin.
Time end_of(const Running& run, Time now, const Policy& policy);
/// Slot-nanoseconds that a tenant may be ahead of another, divided by its weight.
double share_slack(const Window& window, const Policy& policy);
/// How long a run may stand still from now on: no deadline of its own comes nearer for it than
/// Window::allowance, and in all that is no longer than it runs itself, or than Policy::patience.
Time room_in(const Window& window, const Running& run, Time now, const Policy& policy);
/// The shortest time of a run that holds so many rows, kNever without one.
Time quickest(const ModelTimes& model, int rows);
/// Whether requests of a model share launches.
bool joins(const Policy& policy);
/// Launches that so many requests of a model are, at least.
int launches(const ModelTimes& model, const Policy& policy, int requests);
/// Whether batches of a model may as well follow one another on all slots: there the largest one
/// takes little more of the machine than on fewer.
bool follows(const ModelTimes& model, const Policy& policy, int slots);
/// Launches of a model that want slots beside one of it: `requests` wait, the one's among them.
int beside_own(const ModelTimes& model, const Policy& policy, int requests, int slots);
/// How many of a machine's slots there are for a program that may be started, and for whom.
struct Room {
  int share = 0;         // of the program, where all others that want slots get as many
  bool crowded = false;  // that is less than the model's narrowest program takes
  int rows = 1;          // that wait and could be part of it
};
/// Of two programs that are in time the one to be started; `a_time`, `b_time`: what is expected of
/// a run. A batch of no more than the rows that wait: others compute rows of nobody. Where there is
/// room for all, a width within the own part of it, the widest such; of wider ones the narrowest.
/// Where there is not, and between equals, what takes least of the machine for a row.
bool better(const ModelTimes& model, const VariantTime& a, Time a_time, const VariantTime& b,
            Time b_time, const Room& room);
/// Slot-nanoseconds that a row of a model takes at least, in the batches that so many requests
/// make.
double cost_of_row(const ModelTimes& model, const Policy& policy, int waiting, int slots);

}  // namespace obelisk::serve
