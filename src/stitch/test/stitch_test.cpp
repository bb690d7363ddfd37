#include "stitch/stitch.h"

#include <sstream>

#include "graph/test_cases.h"

namespace obelisk::stitch {
namespace {

/// A case names its graph "DEVICE [op] [as they are] [N KiB]": the device, every op alone, no group
/// by other coordinates, scratchpad memory of so much.
Result<std::string> planned(graph::Graph graph) {
  std::istringstream words(graph.name);
  std::string name;
  words >> name;
  TRY(machine::Machine device, machine::device(name, name == "cpu" ? 4 : 0));
  Options options;
  for (std::string word; words >> word;) {
    if (word == "op")
      options.stitch = false;
    else if (word == "as")
      options.adapt = false;
    else if (isdigit(static_cast<unsigned char>(word[0])))
      device.scratchpad = Bytes{atoll(word.c_str()) * 1024};
  }
  const Plan made = plan(graph, device, {}, options);
  TRY_STATUS(verify(graph, made));
  return print(graph, made, true);
}

TEST(Stitch, Schemes) { graph::run_text_cases("src/stitch/test/schemes.ir", planned); }
TEST(Stitch, Anchors) { graph::run_text_cases("src/stitch/test/anchors.ir", planned); }
TEST(Stitch, InPlace) { graph::run_text_cases("src/stitch/test/in_place.ir", planned); }
TEST(Stitch, Groups) { graph::run_text_cases("src/stitch/test/groups.ir", planned); }

}  // namespace
}  // namespace obelisk::stitch
