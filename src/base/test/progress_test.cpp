#include "base/progress.h"

#include <gtest/gtest.h>

namespace obelisk {
namespace {

Progress::Clock::time_point fake_time;
Progress::Clock::time_point fake_now() { return fake_time; }

class Progresses : public testing::Test {
 protected:
  void SetUp() override { fake_time = {}; }
  std::string written(Progress::Mode mode, void (*play)(Progress&)) {
    std::FILE* file = std::tmpfile();
    {
      Progress progress(mode, "compile", file, fake_now);
      play(progress);
    }
    std::string out(static_cast<size_t>(std::ftell(file)), '\0');
    std::rewind(file);
    EXPECT_EQ(std::fread(out.data(), 1, out.size(), file), out.size());
    std::fclose(file);
    return out;
  }
  static void play(Progress& progress) {
    progress.step("passes", 0.01);
    fake_time += std::chrono::milliseconds(50);
    progress.step("passes", 0.02);  // too soon to draw again
    fake_time += std::chrono::seconds(3);
    progress.step("codegen", 0.5);
  }
};

TEST_F(Progresses, TerminalRedrawsOneLine) {
  EXPECT_EQ(written(Progress::Mode::kTerminal, play),
            "\rcompile   1% passes\x1b[K\rcompile  50% codegen   about 3 s left\x1b[K\r\x1b[K");
}

TEST_F(Progresses, JsonWritesLines) {
  EXPECT_EQ(written(Progress::Mode::kJson, play),
            "{\"progress\": 0.010, \"verb\": \"compile\", \"step\": \"passes\", \"elapsed_s\": "
            "0.00}\n"
            "{\"progress\": 0.500, \"verb\": \"compile\", \"step\": \"codegen\", \"elapsed_s\": "
            "3.05, \"left_s\": 3.05}\n");
}

TEST_F(Progresses, OtherwiseSilent) { EXPECT_EQ(written(Progress::Mode::kNone, play), ""); }

TEST_F(Progresses, AFileIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  EXPECT_EQ(Progress::mode_for(file, false), Progress::Mode::kNone);
  EXPECT_EQ(Progress::mode_for(file, true), Progress::Mode::kJson);
  std::fclose(file);
}

}  // namespace
}  // namespace obelisk
