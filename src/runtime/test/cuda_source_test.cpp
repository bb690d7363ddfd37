// A GPU's program as one text, and what is read in the assembler's log. No device compiler is wanted.
#include <gtest/gtest.h>

#include "runtime/cuda/source.h"
#include "runtime/cuda/tables.h"

namespace obelisk::runtime::cuda {
namespace {

TEST(CudaSource, ASerialisedKernelIsItsBody) {
  const Serialised none = serialised("ptxas info    : Used 168 registers\n");
  EXPECT_FALSE(none.any);
  const Serialised two = serialised(
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to insufficient register resources in the function 'obk_kernel_12'\n"
      "ptxas info    : Used 168 registers\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized in the function '_ZN3obk10obk_body_3EPK7ObkTask'\n");
  EXPECT_TRUE(two.any && two.known);
  EXPECT_EQ(two.bodies, (std::set<int>{3, 12}));
}

TEST(CudaSource, OneKernelOfAllNamesNoBody) {
  const Serialised all = serialised("ptxas info : (C7514) serialized in function 'obk_program'\n");
  EXPECT_TRUE(all.any);
  EXPECT_FALSE(all.known);
}

Program two_bodies() {
  Program program;
  program.name = "two", program.target = "sm_90a", program.granularity = "stitch";
  for (const char* label : {"first", "second"}) {
    codegen::BodyText body;
    body.label = label, body.text = "OBK_BODY(obk_body) {\n  OBK_RESIDENT(2);\n}\n";
    program.bodies.push_back(std::move(body));
  }
  return program;
}

TEST(CudaSource, OnlyTheBodyThatWouldBeSerialisedLosesItsWideTiles) {
  const auto plain = device_source(two_bodies()), narrow = device_source(two_bodies(), {1});
  ASSERT_TRUE(plain.ok() && narrow.ok());
  EXPECT_EQ(plain->find("#define OBK_WIDE_TILES"), std::string::npos);
  const size_t off = narrow->find("#define OBK_WIDE_TILES 0\n");
  ASSERT_NE(off, std::string::npos);
  EXPECT_GT(off, narrow->find("/* first */"));
  EXPECT_LT(off, narrow->find("/* second */"));
  EXPECT_GT(narrow->find("#define OBK_WIDE_TILES OBK_INLINED"), narrow->find("/* second */"));
}

// Kernels of a graph are compiled in parts, each body in one of them; one kernel of all is whole.
TEST(CudaSource, EachBodyIsInOnePart) {
  Program program = two_bodies();
  while (program.bodies.size() < 20) program.bodies.push_back(program.bodies[0]);
  const int parts = part_count(program);
  EXPECT_EQ(parts, 7);
  std::vector<int> found(program.bodies.size());
  for (int part = 0; part < parts; ++part) {
    const auto text = device_source(program, {}, part);
    ASSERT_TRUE(text.ok());
    for (int body = 0; body < 20; ++body)
      if (text->find(kernel_name(body) + ",") != std::string::npos) {
        ++found[static_cast<size_t>(body)];
        EXPECT_EQ(part_of(program, body), part);
      }
  }
  EXPECT_EQ(found, std::vector<int>(20, 1));
  program.granularity = "mono";
  EXPECT_EQ(part_count(program), 1);
  EXPECT_EQ(part_of(program, -1), 0);
}

// What a dealt work may have stands in schedule/schedule.h; device code is told, and compares the bytes.
TEST(CudaSource, DeviceCodeIsToldWhatADealtKernelTakes) {
  const auto text = device_source(two_bodies());
  ASSERT_TRUE(text.ok());
  for (const std::string& line :
       {fmt::format("#define OBK_DEALT_OPERANDS {}\n", schedule::kDealtOperands),
        fmt::format("#define OBK_DEALT_BYTES {}\n", sizeof(DeviceDealt))})
    EXPECT_LT(text->find(line), text->find("dealt.cuh")) << line;
}

}  // namespace
}  // namespace obelisk::runtime::cuda
