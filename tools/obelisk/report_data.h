/// obelisk/report_data.h — what a report shows of one compilation, as JSON.
///
///   network    nodes with their op and shapes; groups with kind, wave and members; edges with the
///              scheme by which a value is passed on, and why
///   timeline   tasks by worker: predicted, and measured where the program ran
///   roofline   of each work bytes, operations, its unit's peak, times
///   memory     buffers of the arena by waves; weights and ports
///   verify     errors of each output
///   steps      seconds of each pass and step, with what it says of itself
#pragma once

#include "flags.h"

namespace obelisk::cli {

/// What is known beside the compilation itself.
struct ReportFacts {
  machine::Machine machine;
  std::vector<runtime::TaskTime> times;  // of one run; empty where it did not run
  std::string why_not_measured;
  std::string not_loaded;  // why there is no machine code
};

Json report_data(const compiler::Compilation& made, const ReportFacts& facts);

/// The page with the data inside: nothing else has to be fetched to show it.
std::string report_page(const Json& data);

}  // namespace obelisk::cli
