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

// What an op's call reads begins its storage; a plan that says otherwise is refused.
TEST(Stitch, ACallReadsFromTheBeginningOfAStorage) {
  const auto graph = graph::parse(R"(graph "g" {
  in %0 "x": f32[6]
  const %1: i64[1] = [2]
  %2: f32[6] = Relu(%0)
  %3: f32[6] = Sigmoid(%0)
  %4: f32[2], %5: i64[2] = TopK(%2, %1) {axis = 0, largest = 1}
  out %3 "s"
  out %4 "y"
})");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  Plan made = plan(*graph, machine::cpu(2));
  ASSERT_TRUE(verify(*graph, made).ok());
  made.layouts[2].storage = 3;
  const Status refused = verify(*graph, made);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "value 2, an operand of a call of TopK, lies inside value 3");
}

// A GPU's tiles hold a row's sums in registers: wider heads are products and a softmax. DaViT's
// attention over channels has a row of 3,136 pixels.
TEST(Stitch, HeadsWiderThanTilesAreNoTile) {
  const auto taken = [](const machine::Machine& device, const char* type, int64_t size,
                        int64_t value_size) {
    const auto graph = graph::parse(fmt::format(R"(graph "g" {{
  in %0 "q": {0}[1,3,32,{1}]
  in %1 "k": {0}[1,3,32,{1}]
  in %2 "v": {0}[1,3,32,{2}]
  %3: {0}[1,3,32,{2}] = Attention(%0, %1, %2)
  out %3 "y"
}})",
                                                type, size, value_size));
    CHECK(graph.ok(), "{}", graph.error().text());
    std::string why;
    const bool takes = takes_whole(*graph, graph->order().front(), device, {}, &why);
    EXPECT_EQ(why, takes ? "" : "heads wider than tiles");
    return takes;
  };
  const machine::Machine gpu = *machine::gpu("sm_90a");
  EXPECT_TRUE(taken(gpu, "f16", 256, 256));
  EXPECT_FALSE(taken(gpu, "f16", 257, 64));
  EXPECT_FALSE(taken(gpu, "bf16", 64, 3136));
  EXPECT_TRUE(taken(gpu, "f32", 512, 512));
  EXPECT_FALSE(taken(gpu, "f32", 513, 513));
  EXPECT_TRUE(taken(machine::cpu(2), "f32", 3136, 3136));
}

// What a convolution writes lies with its channels last, and what is computed of it alone; a
// graph's inputs and outputs do not, nor what has one element a channel.
TEST(Stitch, BlocksOfSqueezeExcite) {
  const machine::Machine gpu = *machine::gpu("sm_90a");
  const auto why = [&](const std::string& x, const std::string& w1, const std::string& end,
                       const std::string& shape = "1,16,8,8", bool own_kernels = true) {
    auto graph = graph::parse(fmt::format(R"(graph "g" {{
  in %0 "x": f16[{0}]
  in %1 "w1": f16[4,16]
  in %2 "w2": f16[4,16]
  %3: f16[{0}] = Abs(%0)
  %4: f16[4,16] = Abs(%1)
  %5: f16[{0}] = SqueezeExcite(%{1}, %{2}, _, %2)
  %6: f16[{0}] = Neg(%5)
  out %{3} "y"
  out %4 "w"
}}
)",
                                          shape, x, w1, end));
    EXPECT_TRUE(graph.ok()) << graph.error().text();
    std::string reason;
    for (NodeId node : graph->order())
      if (graph->node(node).op == ops::Op::SqueezeExcite)
        takes_whole(*graph, node, gpu, {.own_kernels = own_kernels}, &reason);
    return reason;
  };
  EXPECT_EQ(why("3", "1", "6"), "");
  // What a kernel that shares its SMs, or has to wait for its weights, cannot do.
  EXPECT_EQ(why("3", "1", "6", "1,16,8,8", false), "gangs have no kernels of their own");
  const std::string stored =
      "its map is not stored with the channels last, or weights are computed";
  EXPECT_EQ(why("3", "4", "6"), stored);
  EXPECT_EQ(why("0", "1", "6"), stored);  // an input of the program
  EXPECT_EQ(why("3", "1", "5"), stored);  // an answer
  EXPECT_EQ(why("3", "1", "6", "1,16,512,512"), "no block for its type or sizes");
  EXPECT_EQ(why("3", "1", "6", "4096,16,8,8"), "its ops one by one are predicted to be quicker");
}

TEST(Stitch, StoresChannelsLast) {
  std::vector<int> ones(16 * 8, 1);
  const auto graph = graph::parse(fmt::format(R"(graph "g" {{
  in %0 "x": f16[1,8,6,6]
  const %1: f16[16,8,1,1] = [{}]
  const %2: i64[2] = [2, 3]
  %3: f16[1,16,6,6] = Conv(%0, %1)
  %4: f16[1,16,6,6] = Relu(%3)
  %5: f16[1,16,1,1] = ReduceMean(%4, %2)
  %6: f16[1,16,6,6] = Mul(%4, %5)
  out %6 "y"
}})",
                                              fmt::join(ones, ", ")));
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const auto last = stored_channels_last(*graph, *machine::gpu("sm_90a"));
  EXPECT_EQ(last, (std::vector<bool>{false, false, false, true, true, false, false}));
  EXPECT_EQ(
      stored_channels_last(*graph, *machine::gpu("sm_90a"), {.stitch = false, .tiles = false}),
      std::vector<bool>(7, false));
}

}  // namespace
}  // namespace obelisk::stitch
