// What `auto` chooses among, and what it says of a granularity that cannot be.
#include "granularity.h"

#include <gtest/gtest.h>

namespace obelisk::compiler {
namespace {

/// A program that is loaded for a GPU which is not here.
class Loaded : public runtime::Executable {
 public:
  explicit Loaded(Granularity granularity, int waves) {
    program_.target = "sm_90a", program_.granularity = granularity;
    program_.waves = waves, program_.lists.resize(1);
  }
  const runtime::Program& program() const override { return program_; }
  const runtime::LoadReport& report() const override { return report_; }
  const runtime::DeviceReport* device() const override { return &device_; }
  std::vector<std::string> objects() const override { return {}; }
  Result<std::unique_ptr<runtime::Context>> context(int) const override {
    return Error{Code::kDevice, "test", "there is no GPU"};
  }

 private:
  runtime::Program program_;
  runtime::LoadReport report_;
  runtime::DeviceReport device_;
};

Candidate loaded(Granularity granularity, int waves) {
  return {.granularity = granularity, .executable = std::make_shared<Loaded>(granularity, waves)};
}
Candidate refused(Granularity granularity, const std::string& why) {
  return {.granularity = granularity, .refused = why};
}
Result<Choice> choose(std::vector<Candidate> candidates) {
  return choose_granularity(std::move(candidates), []() -> std::vector<Tensor> {
    ADD_FAILURE() << "nothing is measured without a GPU";
    return {};
  });
}

TEST(Granularity, OneThatIsRefusedIsLeftOutAndItsReasonTold) {
  const std::string why = "node \"layer/Softmax\": a task wants 1.0 MiB of shared memory";
  const auto choice = choose({refused(Granularity::kMono, why), loaded(Granularity::kStitch, 1),
                              loaded(Granularity::kOp, 3)});
  ASSERT_TRUE(choice.ok()) << choice.error().text();
  EXPECT_EQ(choice->candidates[choice->chosen].granularity, Granularity::kStitch);
  EXPECT_FALSE(choice->measured);
  EXPECT_EQ(choice->text().find("stitch: "), 0u) << choice->text();
  EXPECT_NE(choice->text().find("mono (" + why + ")"), std::string::npos) << choice->text();
}

/// Programs of all granularities, of which `load` says how they are loaded.
Result<std::vector<Candidate>> candidates(const std::function<Status(Granularity)>& load) {
  std::vector<std::shared_ptr<const runtime::Program>> programs;
  for (const auto granularity : {Granularity::kMono, Granularity::kStitch, Granularity::kOp}) {
    auto program = std::make_shared<runtime::Program>();
    program->granularity = granularity;
    programs.push_back(std::move(program));
  }
  return load_candidates(
      programs, [&](const auto& program) -> Result<std::shared_ptr<const runtime::Executable>> {
        TRY_STATUS(load(program->granularity));
        return std::shared_ptr<const runtime::Executable>(
            std::make_shared<Loaded>(program->granularity, 2));
      });
}

TEST(Granularity, OneWhoseCodeCannotBeBuiltIsLeftOut) {
  const auto made = candidates([](Granularity granularity) -> Status {
    if (granularity == Granularity::kMono)
      return Error{Code::kBuild, "test", "a kernel spills registers"};
    return ok_status();
  });
  ASSERT_TRUE(made.ok()) << made.error().text();
  const auto choice = choose(*made);
  ASSERT_TRUE(choice.ok()) << choice.error().text();
  EXPECT_EQ(choice->candidates[choice->chosen].granularity, Granularity::kStitch);
  EXPECT_NE(choice->text().find("a kernel spills registers"), std::string::npos) << choice->text();
}

TEST(Granularity, WhereNoneCanBeBuiltTheFirstErrorIsTold) {
  const auto made = candidates([](Granularity granularity) -> Status {
    return Error{granularity == Granularity::kStitch ? Code::kUnsupported : Code::kBuild, "test",
                 "this is " + std::string(to_string(granularity))};
  });
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Code::kBuild);
  EXPECT_EQ(made.error().message, "this is mono");
  const auto device = candidates([](Granularity granularity) -> Status {
    if (granularity == Granularity::kOp) return Error{Code::kDevice, "test", "the GPU is gone"};
    return ok_status();
  });
  ASSERT_FALSE(device.ok()) << "what is wrong with the GPU is not of one granularity alone";
  EXPECT_EQ(device.error().code, Code::kDevice);
}

TEST(Granularity, TheQuickestByThePredictionIsTaken) {
  const auto choice = choose({loaded(Granularity::kMono, 9), loaded(Granularity::kStitch, 2),
                              loaded(Granularity::kOp, 3)});
  ASSERT_TRUE(choice.ok()) << choice.error().text();
  EXPECT_EQ(choice->candidates[choice->chosen].granularity, Granularity::kStitch);
}

TEST(Granularity, WhereAllAreRefusedTheFirstReasonIsTheError) {
  const auto choice = choose(
      {refused(Granularity::kMono, "the first"), refused(Granularity::kStitch, "the second")});
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.error().code, Code::kUnsupported);
  EXPECT_EQ(choice.error().message, "the first");
  EXPECT_FALSE(choice.error().hint.empty());
}

}  // namespace
}  // namespace obelisk::compiler
