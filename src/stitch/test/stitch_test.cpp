#include "stitch/stitch.h"

#include <sstream>

#include "graph/test_cases.h"

namespace obelisk::stitch {
namespace {

/// A case names its graph "DEVICE [op] [as they are] [N KiB] [workers=N] [invariant]": the device,
/// every op alone, no group by other coordinates, scratchpad memory of so much, so many workers,
/// batch-invariant.
Result<std::string> planned(graph::Graph graph) {
  std::istringstream words(graph.name);
  std::string name;
  words >> name;
  const size_t workers = graph.name.find("workers=");
  TRY(machine::Machine device,
      machine::device(name, workers != std::string::npos ? atoi(graph.name.c_str() + workers + 8)
                            : name == "cpu"              ? 4
                                                         : 0));
  Options options;
  machine::Strategy strategy;
  for (std::string word; words >> word;) {
    if (word == "op")
      options.stitch = false;
    else if (word == "as")
      options.adapt = false;
    else if (word == "invariant")
      strategy.batch_invariant = true;
    else if (isdigit(static_cast<unsigned char>(word[0])))
      device.scratchpad = Bytes{atoll(word.c_str()) * 1024};
  }
  const Plan made = plan(graph, device, strategy, options);
  TRY_STATUS(verify(graph, made));
  return print(graph, made, true);
}

TEST(Stitch, Schemes) { graph::run_text_cases("src/stitch/test/schemes.ir", planned); }
TEST(Stitch, Anchors) { graph::run_text_cases("src/stitch/test/anchors.ir", planned); }
TEST(Stitch, InPlace) { graph::run_text_cases("src/stitch/test/in_place.ir", planned); }
TEST(Stitch, Groups) { graph::run_text_cases("src/stitch/test/groups.ir", planned); }

}  // namespace
}  // namespace obelisk::stitch
