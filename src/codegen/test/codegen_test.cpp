// Bodies as text and what the runtime is told of them: cases in the files beside this one, fields
// in code.
#include "codegen/codegen.h"

#include <algorithm>
#include <functional>
#include <sstream>

#include "graph/test_cases.h"

namespace obelisk::codegen {
namespace {

/// A case names its graph "DEVICE [stitch|op|mono]": the device and the granularity.
Result<Source> emitted(const graph::Graph& graph) {
  std::istringstream words(graph.name);
  std::string name, granularity;
  words >> name >> granularity;
  TRY(const machine::Machine device, machine::device(name, name == "cpu" ? 4 : 0));
  const machine::Strategy strategy = machine::strategy_for(
      device, {.granularity =
                   machine::parse_granularity(granularity).value_or(machine::Granularity::kStitch),
               .dataflow = false});
  stitch::Options options;
  options.stitch = granularity != "op";
  const stitch::Plan plan = stitch::plan(graph, device, strategy, options);
  TRY_STATUS(stitch::verify(graph, plan));
  const schedule::TaskGraph tasks = schedule::build(graph, plan, device, strategy);
  TRY_STATUS(schedule::validate(graph, plan, tasks));
  return emit(graph, plan, tasks, kernels::tile_library(device));
}

Result<std::string> traits_of(graph::Graph graph) {
  TRY(const Source source, emitted(graph));
  std::string out;
  for (const BodyText& body : source.bodies)
    out += fmt::format("{}: {}\n", body.label, to_string(body.traits));
  return out;
}

Result<std::string> texts_of(graph::Graph graph) {
  TRY(const Source source, emitted(graph));
  std::string out;
  for (const BodyText& body : source.bodies)
    out += fmt::format("{}: {}\n{}", body.label, to_string(body.traits), body.text);
  return out;
}

/// Of each body the lines that say one of the words.
Result<std::string> lines_of(const graph::Graph& graph, const std::vector<std::string>& words) {
  TRY(const Source source, emitted(graph));
  std::string out;
  for (const BodyText& body : source.bodies) {
    out += fmt::format("{}: {}\n", body.label, to_string(body.traits));
    std::istringstream text(body.text);
    for (std::string line; std::getline(text, line);)
      if (std::any_of(words.begin(), words.end(), [&](const std::string& word) {
            return line.find(word) != std::string::npos;
          }))
        out += line + "\n";
  }
  return out;
}
/// Which tile of the library a body calls, where it leaves its answer, and what is waited for.
Result<std::string> tiles_of(graph::Graph graph) {
  return lines_of(graph, {"OBK_GEMM_", "OBK_PIPELINED_GEMM_", "OBK_CONV_", "OBK_DEPTHWISE_",
                          "OBK_ATTENTION_", "OBK_ROWS", "OBK_BEGIN_", "OBK_WAIT_",
                          " g.c = ", " g.y = ", "g.packed", "g.pack ", "g.zero_if_masked"});
}
/// In which way a body walks its rows, how many lanes join, and which functions have short forms.
Result<std::string> ways_of(graph::Graph graph) {
  return lines_of(graph, {"constexpr int", "OBK_FOR_", "for (int base", "OBK_JOIN", "_approx(",
                          "obk::divisor(", "obk::exp", "OBK_COMMIT_COPIES", "OBK_LANE("});
}

TEST(Codegen, Bodies) { graph::run_text_cases("src/codegen/test/bodies.ir", texts_of); }
TEST(Codegen, Tiles) { graph::run_text_cases("src/codegen/test/tiles.ir", tiles_of); }
TEST(Codegen, Ways) { graph::run_text_cases("src/codegen/test/ways.ir", ways_of); }
TEST(Codegen, Traits) { graph::run_text_cases("src/codegen/test/traits.ir", traits_of); }

BodyTraits gemm_traits() {
  BodyTraits traits{.operands = 3,
                    .form = BodyTraits::Form::kPipelinedGemm,
                    .waits = BodyTraits::Wait::kKernelBefore};
  traits.gemm = PipelinedGemm{.a = 1,
                              .b = 2,
                              .rows = 128,
                              .pitch = 768,
                              .span = 128,
                              .row = 3,
                              .block = 4,
                              .row_step = 5,
                              .block_step = 6,
                              .blocks = 12,
                              .stage = 2,
                              .weights_step = 16,
                              .b_count = 2,
                              .columns = 96,
                              .split_k = 2,
                              .late_scratch = 64,
                              .all_rows = 128,
                              .all_columns = 384};
  return traits;
}
BodyTraits gemm_of_activations() {
  BodyTraits traits = gemm_traits();
  traits.gemm->weights_step = 0, traits.gemm->b_count = 1;
  traits.gemm->boxes = BoxMatrix{.rows = 1536,
                                 .columns = 400,
                                 .pitch = 512,
                                 .row = 7,
                                 .column = 8,
                                 .row_step = 768,
                                 .column_step = 9,
                                 .k_rows = true};
  return traits;
}
BodyTraits asking_traits() {
  BodyTraits traits{
      .operands = 3, .params = 7, .waits = BodyTraits::Wait::kWaveBefore, .tiles = kGemmTile};
  traits.async_rows = AsyncRows{.a = 1, .rows = 128, .pitch = 768, .blocks = 3, .box = 64};
  return traits;
}

// What visits all numbers of traits reads what it wrote, and every number tells bodies apart.
TEST(BodyTraits, EveryNumberIsPartOfABodysIdentity) {
  for (const BodyTraits& traits :
       {BodyTraits{}, gemm_traits(), gemm_of_activations(), asking_traits()}) {
    EXPECT_EQ(disagreement(traits), "");
    std::vector<int64_t> numbers;
    visit_numbers(traits, [&](const char* name, const auto& number, int64_t least, int64_t most) {
      numbers.push_back(static_cast<int64_t>(number));
      EXPECT_TRUE(least <= numbers.back() && numbers.back() <= most) << name;
    });
    const auto read = [](const std::vector<int64_t>& from) {
      BodyTraits made;
      size_t at = 0;
      visit_numbers(made, [&](const char*, auto& number, int64_t, int64_t) {
        number = static_cast<std::remove_reference_t<decltype(number)>>(
            at < from.size() ? from[at++] : 1);
      });
      return made;
    };
    EXPECT_EQ(read(numbers), traits);
    for (size_t k = 0; k < numbers.size(); ++k) {
      std::vector<int64_t> other = numbers;
      other[k] ^= 1;
      EXPECT_NE(read(other), traits) << k;
      EXPECT_NE(identity("text", read(other)), identity("text", traits)) << k;
    }
    EXPECT_NE(identity("text", traits), identity("texts", traits));
  }
}

TEST(BodyTraits, FieldsAgreeWithOneAnother) {
  using Form = BodyTraits::Form;
  const auto wrong = [](BodyTraits traits, const std::function<void(BodyTraits&)>& change) {
    change(traits);
    return disagreement(traits);
  };
  EXPECT_NE(wrong({}, [](BodyTraits& t) { t.ctas_per_sm = 2; }), "");
  EXPECT_NE(wrong({}, [](BodyTraits& t) { t.form = Form::kGrid; }), "");
  EXPECT_EQ(wrong({}, [](BodyTraits& t) { t.form = Form::kGrid, t.ctas_per_sm = 2; }), "");
  EXPECT_NE(wrong({}, [](BodyTraits& t) { t.cluster = 8; }), "");
  EXPECT_NE(wrong({}, [](BodyTraits& t) { t.form = Form::kCluster; }), "");
  EXPECT_EQ(wrong({}, [](BodyTraits& t) { t.form = Form::kCluster, t.cluster = 8; }), "");
  EXPECT_NE(wrong({}, [](BodyTraits& t) { t.form = Form::kPipelinedGemm; }), "");
  EXPECT_NE(wrong(gemm_traits(), [](BodyTraits& t) { t.form = Form::kTaskList; }), "");
  EXPECT_NE(wrong(gemm_traits(), [](BodyTraits& t) { t.gemm->b = 3; }), "");
  EXPECT_NE(wrong(asking_traits(), [](BodyTraits& t) { t.waits = BodyTraits::Wait::kNothing; }),
            "");
  EXPECT_NE(wrong(asking_traits(), [](BodyTraits& t) { t.operands = 1; }), "");
}

// Works share a body where text and traits are the same: layers of equal shape on a GPU, of any
// shape on a core.
TEST(Codegen, WorksShareBodies) {
  const std::string layers = R"(
  in %0 "x": f32[8,ROWS]
  const %1: i64[1] = [1]
  %2: f32[8,ROWS] = Tanh(%0)
  %3: f32[8,1] = ReduceMax(%2, %1)
  %4: f32[8,ROWS] = Sub(%2, %3)
  %5: f32[8,1] = ReduceMax(%4, %1)
  %6: f32[8,ROWS] = Sub(%4, %5)
  %7: f32[8,ROWS] = Exp(%6)
  out %7 "y"
}
)";
  for (const std::string& name : {std::string("sm_90a op"), std::string("cpu op")}) {
    std::string text = "graph \"" + name + "\" {" + layers;
    for (size_t at; (at = text.find("ROWS")) != std::string::npos;) text.replace(at, 4, "64");
    const auto graph = graph::parse(text);
    ASSERT_TRUE(graph.ok()) << graph.error().text();
    const auto source = emitted(*graph);
    ASSERT_TRUE(source.ok()) << source.error().text();
    ASSERT_EQ(source->body_of_work.size(), 6u);
    EXPECT_EQ(source->bodies.size(), 4u) << name;
    EXPECT_EQ(source->body_of_work[1], source->body_of_work[3]);
    EXPECT_EQ(source->body_of_work[2], source->body_of_work[4]);
    for (size_t work = 1; work < 5; ++work) {
      const BodyText& body = source->bodies[static_cast<size_t>(source->body_of_work[work])];
      EXPECT_EQ(static_cast<size_t>(body.traits.params), source->params[work].size());
      EXPECT_EQ(body.hash, identity(body.text, body.traits));
      EXPECT_EQ(source->params[work].empty(), name[0] == 's')
          << "for GPUs shapes are constants of the text";
    }
  }
}

}  // namespace
}  // namespace obelisk::codegen
