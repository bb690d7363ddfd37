// The C functions as a user's program calls them: it sees obelisk.h and libobelisk.so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "obelisk.h"

namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// What an error says, and its kind; both are empty of NULL. Frees it.
struct Told {
  obelisk_code code;
  std::string text, message, hint;
};
Told told(obelisk_error* error) {
  Told out{obelisk_error_code(error), obelisk_error_text(error), obelisk_error_message(error),
           obelisk_error_hint(error)};
  obelisk_error_free(error);
  return out;
}

class CApi : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("obelisk-capi-" + std::to_string(::getpid()));
    fs::create_directories(folder);
    std::ofstream(folder / "three.ir")
        << "graph \"three\" {\n  in %0 \"x\": f32[2,3]\n  in %1 \"w\": f32[3]\n  %2 \"y\": "
           "f32[2,3] = Mul(%0, %1)\n  out %2 \"y\"\n}\n";
    options.cache = cache.assign((folder / "cache").string()).c_str();
  }
  void TearDown() override { fs::remove_all(folder); }
  obelisk_model* compiled() {
    obelisk_model* model = nullptr;
    const Told error = told(obelisk_compile_file((folder / "three.ir").c_str(), &options, &model));
    EXPECT_EQ(error.code, OBELISK_OK) << error.text;
    return model;
  }
  fs::path folder;
  std::string cache;
  obelisk_compile_options options = OBELISK_INIT(obelisk_compile_options);
};

std::vector<float> answer(const obelisk_model* model) {
  obelisk_context* context = nullptr;
  EXPECT_EQ(obelisk_context_create(model, 1, &context), nullptr);
  const float x[6] = {1, 2, 3, 4, 5, 6}, w[3] = {10, 100, 1000};
  std::vector<float> y(6);
  EXPECT_EQ(obelisk_bind_input(context, "x", x, sizeof x), nullptr);
  EXPECT_EQ(obelisk_bind_input(context, "w", w, sizeof w), nullptr);
  EXPECT_EQ(obelisk_bind_output(context, "y", y.data(), sizeof x), nullptr);
  EXPECT_EQ(told(obelisk_run(context)).text, "");
  EXPECT_EQ(obelisk_wait(context), nullptr);
  obelisk_context_free(context);
  return y;
}
const std::vector<float> kAnswer = {10, 200, 3000, 40, 500, 6000};

TEST_F(CApi, VersionsAgree) {
  const uint32_t number = obelisk_version();
  EXPECT_EQ(obelisk_version_string(), std::to_string(number >> 16) + "." +
                                          std::to_string(number >> 8 & 255) + "." +
                                          std::to_string(number & 255));
}

TEST_F(CApi, CompilesDescribesAndRuns) {
  obelisk_model* model = compiled();
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(std::string(obelisk_model_name(model)), "three");
  EXPECT_EQ(std::string(obelisk_model_target(model)), "cpu");
  EXPECT_EQ(obelisk_model_gpu(model), -1);
  EXPECT_STRNE(obelisk_verified_rows(model), "");
  ASSERT_EQ(obelisk_input_count(model), 2u);
  ASSERT_EQ(obelisk_output_count(model), 1u);
  obelisk_port port = OBELISK_INIT(obelisk_port);
  EXPECT_EQ(obelisk_output(model, 0, &port), nullptr);
  EXPECT_EQ(std::string(port.name), "y");
  EXPECT_EQ(port.element, OBELISK_F32);
  ASSERT_EQ(port.rank, 2u);
  EXPECT_EQ(port.extents[1], 3);
  EXPECT_EQ(port.count, 6);
  EXPECT_EQ(port.bytes, 24u);
  EXPECT_EQ(answer(model), kAnswer);
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k) threads.emplace_back([&] { EXPECT_EQ(answer(model), kAnswer); });
  for (std::thread& thread : threads) thread.join();
  obelisk_model_free(model);
}

TEST_F(CApi, ContextsOutliveTheirModel) {
  obelisk_model* model = compiled();
  obelisk_context* context = nullptr;
  ASSERT_EQ(obelisk_context_create(model, 0, &context), nullptr);
  obelisk_model_free(model);
  void* x = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(obelisk_input_memory(context, "x", &x, &bytes), nullptr);
  ASSERT_EQ(bytes, 24u);
  EXPECT_EQ(obelisk_run(context), nullptr);
  const void* y = nullptr;
  EXPECT_EQ(obelisk_output_memory(context, "y", &y, nullptr), nullptr);
  EXPECT_EQ(static_cast<const float*>(y)[5], 0.0f);
  obelisk_context_free(context);
}

TEST_F(CApi, FilesAndMemoryAreTheSame) {
  obelisk_model* model = compiled();
  void* file = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(told(obelisk_save_memory(model, &file, &bytes)).text, "");
  ASSERT_EQ(told(obelisk_save_file(model, (folder / "m.obk").c_str())).text, "");
  EXPECT_EQ(fs::file_size(folder / "m.obk"), bytes);
  obelisk_model_free(model);
  obelisk_open_options open = OBELISK_INIT(obelisk_open_options);
  open.cache = cache.c_str();
  for (const int portable : {0, 1}) {
    open.portable = portable;
    std::vector<char> odd(bytes + 1);  // memory need not be aligned
    std::copy_n(static_cast<const char*>(file), bytes, odd.data() + 1);
    obelisk_model *from_memory = nullptr, *from_file = nullptr;
    ASSERT_EQ(told(obelisk_open_memory(odd.data() + 1, bytes, &open, &from_memory)).text, "");
    std::fill(odd.begin(), odd.end(), '\0');  // nor stay
    ASSERT_EQ(told(obelisk_open_file((folder / "m.obk").c_str(), &open, &from_file)).text, "");
    EXPECT_EQ(answer(from_memory), kAnswer);
    EXPECT_EQ(answer(from_file), kAnswer);
    obelisk_model_free(from_memory), obelisk_model_free(from_file);
  }
  obelisk_free(file);
}

TEST_F(CApi, ErrorsSayWhatAndNothingIsMade) {
  obelisk_model* model = reinterpret_cast<obelisk_model*>(1);
  Told error = told(obelisk_compile_file((folder / "gone.onnx").c_str(), nullptr, &model));
  EXPECT_EQ(error.code, OBELISK_USAGE);
  EXPECT_THAT(error.text, HasSubstr("gone.onnx"));
  EXPECT_EQ(model, nullptr);
  EXPECT_EQ(told(obelisk_compile_memory("no model", 8, nullptr, &model)).code, OBELISK_BAD_MODEL);
  EXPECT_EQ(told(obelisk_open_memory("", 0, nullptr, &model)).code, OBELISK_BAD_MODEL);
  EXPECT_THAT(told(obelisk_compile_file(nullptr, nullptr, &model)).text, HasSubstr("path is NULL"));
  EXPECT_THAT(told(obelisk_compile_memory(nullptr, 5, nullptr, &model)).text, HasSubstr("NULL"));
  EXPECT_EQ(told(obelisk_compile_file("x", nullptr, nullptr)).code, OBELISK_USAGE);
  EXPECT_EQ(told(obelisk_run(nullptr)).code, OBELISK_USAGE);
  options.precision = "fp12";
  error = told(obelisk_compile_file((folder / "three.ir").c_str(), &options, &model));
  EXPECT_THAT(error.message, HasSubstr("fp12"));
  EXPECT_THAT(error.hint, HasSubstr("bf16"));
  options.precision = nullptr;
  obelisk_context* context = nullptr;
  model = compiled();
  ASSERT_EQ(obelisk_context_create(model, 0, &context), nullptr);
  float few[2] = {};
  EXPECT_THAT(told(obelisk_bind_input(context, "x", few, sizeof few)).text,
              HasSubstr("takes 24 bytes, but 8"));
  EXPECT_THAT(told(obelisk_bind_input(context, "z", few, sizeof few)).text,
              HasSubstr("its inputs: x, w"));
  EXPECT_EQ(told(obelisk_run_on(context, nullptr)).code, OBELISK_UNSUPPORTED);
  obelisk_port port = OBELISK_INIT(obelisk_port);
  EXPECT_THAT(told(obelisk_input(model, 2, &port)).text, HasSubstr("there are 2 ports"));
  obelisk_context_free(context);
  obelisk_model_free(model);
  obelisk_error_free(nullptr), obelisk_model_free(nullptr), obelisk_context_free(nullptr),
      obelisk_free(nullptr);
}

TEST_F(CApi, StructsMayBeOlderOrNewer) {
  obelisk_model* model = nullptr;
  const std::string path = (folder / "three.ir").string();
  // Older: what it lacks is zero, whatever stands behind it.
  obelisk_compile_options short_one = options;
  short_one.size = offsetof(obelisk_compile_options, precision);
  short_one.precision = "not looked at";
  short_one.cache = "not looked at";
  EXPECT_EQ(told(obelisk_compile_file(path.c_str(), &short_one, &model)).text, "");
  obelisk_model_free(model);
  // Newer: what is not known here has to be zero.
  struct {
    obelisk_compile_options known;
    uint64_t later;
  } long_one = {options, 0};
  long_one.known.size = sizeof long_one;
  EXPECT_EQ(told(obelisk_compile_file(path.c_str(), &long_one.known, &model)).text, "");
  obelisk_model_free(model);
  long_one.later = 1;
  EXPECT_THAT(told(obelisk_compile_file(path.c_str(), &long_one.known, &model)).text,
              HasSubstr("members that this version does not know"));
  obelisk_compile_options none = options;
  none.size = 0;
  EXPECT_THAT(told(obelisk_compile_file(path.c_str(), &none, &model)).text,
              HasSubstr("OBELISK_INIT"));
  model = compiled();
  struct {
    obelisk_port known;
    char guard;
  } small = {{offsetof(obelisk_port, element)}, 'g'};
  small.known.bytes = 77;
  EXPECT_EQ(obelisk_input(model, 0, &small.known), nullptr);
  EXPECT_STREQ(small.known.name, "x");
  EXPECT_EQ(small.known.bytes, 77u);
  obelisk_model_free(model);
}

TEST_F(CApi, ProgressIsToldAndEndsIt) {
  obelisk_model* model = nullptr;
  struct Seen {
    std::vector<std::string> steps;
    int answer;
  } seen{{}, 0};
  options.user = &seen;
  options.progress = [](const char* step, double, void* user) {
    static_cast<Seen*>(user)->steps.push_back(step);
    return static_cast<Seen*>(user)->answer;
  };
  obelisk_model_free(compiled());
  EXPECT_FALSE(seen.steps.empty());
  seen.answer = 1;
  EXPECT_EQ(told(obelisk_compile_file((folder / "three.ir").c_str(), &options, &model)).code,
            OBELISK_INTERRUPTED);
  EXPECT_EQ(model, nullptr);
}

TEST_F(CApi, TheLogGoesWhereItIsAskedFor) {
  fs::create_directory(folder / "open");
  fs::permissions(folder / "open", fs::perms::all);
  const std::string others = (folder / "open").string();
  options.cache = others.c_str();
  std::vector<std::string> lines;
  obelisk_set_log(
      [](obelisk_log_level level, const char* part, const char* text, void* user) {
        static_cast<std::vector<std::string>*>(user)->push_back(std::to_string(level) + " " + part +
                                                                " " + text);
      },
      &lines, OBELISK_LOG_WARNING);
  obelisk_model_free(compiled());
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines[0], testing::AllOf(testing::StartsWith("0 runtime "),
                                       HasSubstr("can be written by others")));
  obelisk_set_log(nullptr, nullptr, OBELISK_LOG_WARNING);
  const size_t before = lines.size();
  obelisk_model_free(compiled());
  EXPECT_EQ(lines.size(), before);
}

}  // namespace
