/// serve/record.h — what happened and what was decided, as lines of text; and the same again.
///
///   version 5                                           none: 1
///   machine 1 132                                       machines, slots
///   policy vliw 1 ...                                   every knob
///   tenant 1                                            its weight; they are numbered in this
///   order times 0 compute 1:132:182000:182000 ... | 182000 ...
///                                                       a model's variants (batch, width, alone,
///                                                       beside in ns; :code, :segment where there
///                                                       are any), its times on streams
///   ask 1200 64 7 0 0 0 1 1200 92000 = taken            now, limit of the queue, the request (key,
///                                                       model, tenant, priority, rows, arrival,
///                                                       deadline)
///   cancel 7                                            a request
///   finish 3 181000                                     a run, how long it took, and before that
///                                                       waited for another to give way
///   forget 0                                            a model that is gone
///   decide 1200 = start 0 0 0 132 7; wake 91000         now, the decisions
///
/// `replay` does what the lines say with a window of its own and compares what is decided.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>

#include "serve/scheduler.h"

namespace obelisk::serve {

class Recorder {
 public:
  Recorder(std::ostream& out, int machines, int slots, const Policy& policy);
  void tenant(double weight);
  void times(int model, const ModelTimes& times);
  void ask(Time now, int queue_limit, const Job& job, const Admission& admission);
  void cancel(uint64_t key);
  void forget(int model);
  void finish(uint64_t run, Time took, Time waited = Time(0));
  void decide(Time now, const Decisions& decisions);

 private:
  std::ostream& out_;
};

struct Replay {
  int64_t lines = 0, decisions = 0, asked = 0;
  std::string difference;  // the first, with its line; empty: none
};
/// Errors: kUsage for a record that cannot be read.
Result<Replay> replay(std::istream& in);

std::string text_of(const Decisions& decisions);

}  // namespace obelisk::serve
