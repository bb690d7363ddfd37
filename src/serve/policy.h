/// serve/policy.h — the knobs of the scheduler. A policy is data, so that all of them run in one
/// binary on the same programs.
///
///   fifo     one program at a time, whole machine, in the order of arrival
///   time     the same, turn by turn over tenants (time slicing)
///   streams  whole programs side by side, in the order of arrival; the hardware shares
///   edf      one at a time, earliest deadline first
///   batch    one at a time, as many waiting requests of the oldest one's model as its largest
///   batch takes vliw     least slack first, out of order, batches, programs side by side, each as
///   wide as the emptiness allows and as narrow as
///            its deadline allows
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/base.h"
#include "serve/times.h"

namespace obelisk::serve {

using obelisk::to_string;

enum class PolicyKind { kFifo, kTime, kStreams, kEdf, kBatch, kVliw };

/// When a request that waits is given up.
enum class Drop {
  kPassed,    // its deadline has passed
  kHopeless,  // it could not be met any more if it were started now
};

struct Policy {
  PolicyKind kind = PolicyKind::kVliw;
  Drop drop = Drop::kHopeless;
  bool admit_by_load = true;  // refuse at the door what the work ahead of it makes late
  /// Of what is admitted with a deadline so many are to be in time: admission allows for how
  /// far runs are from their predictions, and for more where fewer are (Window::allowance). 0: it
  /// always believes the prediction.
  double promise = 0.995;
  int streams = 8;  // programs at once of `streams`

  // ---- vliw: each part has its switch ----
  bool batches = true;   // requests of one model become one launch
  bool narrow = true;    // programs side by side; else each gets the whole machine
  bool foresee = true;   // who is likely to come soon counts as waiting, when widths are chosen
  bool hold = true;      // wait for a partner while slack allows and others have work for the slots
  bool reserve = false;  // slots that become free are kept for who would be late without them; for
                         // who is neglected, or was admitted and has half of its time behind it,
                         // they always are
  bool instances = true;  // runs of models of the same code, each with its own weights, share a
                          // launch (a super-kernel)
  int overlap = 4;  // of what would be late on slots that become free, so many may run beside the
                    // programs that have the slots: the hardware shares its processors among them
  bool eager = false;    // of what could wait for slots that become free, too, starts beside the
                         // programs that have them what would wait for longer than it delays those
  bool segments = true;  // what would be late on slots that become free runs within a program that
                         // has some and gives way between two parts, where that is in time so
  bool pace = true;  // predictions are as much longer as the machine's runs were of late: its cores
                     // may be shared with others
  bool shares = true;  // tenants beyond their share stand behind those within it: at admission,
                       // or, of requests without a deadline, in the queue
  double margin =
      1.05;  // predictions are multiplied by it before they are compared with a deadline
  double straggler = 1.5;  // a tenant whose runs take so many times the prediction is demoted
  Time gather{10'000};  // a request waits so long, from one to the next, for those of other models
                        // that would share its launch, where they are expected and its slack allows
  Time patience{50'000'000};      // of requests without a deadline nobody is passed over for longer
  Time share_slack{20'000'000};   // whole-machine time that a tenant may be ahead of its fair share
  Time best_effort{100'000'000};  // takes the place of the deadline of requests that have none
};

/// The defaults of each, and knobs that are set behind it: "vliw:overlap=8:hold=0:gather=20" (times
/// in microseconds). Errors: kUsage, naming those that there are.
Result<Policy> policy_named(const std::string& text);
std::string to_string(PolicyKind kind);
std::vector<std::string> policy_names();

}  // namespace obelisk::serve
