#include "base/text.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace obelisk {
namespace {

TEST(Texts, BlanksAreFilled) {
  const Template loop("for (int ${i} = 0; ${i} < ${n}; ++${i}) $x");
  EXPECT_EQ(loop.fill({{"i", "k"}, {"n", "8"}}), "for (int k = 0; k < 8; ++k) $x");
  EXPECT_EQ(Template("").fill({}), "");
  EXPECT_EQ(Template("${a}").fill({{"a", "x\ny"}}), "x\ny");
}

TEST(Texts, ABlankAloneOnItsLineIndentsItsLines) {
  const Template body("void f() {\n  ${body}\n}\n");
  EXPECT_EQ(body.fill({{"body", "a;\n\nb;\n"}}), "void f() {\n  a;\n\n  b;\n}\n");
  EXPECT_EQ(body.fill({{"body", ""}}), "void f() {\n}\n");
  EXPECT_EQ(Template("${a}\n${b}\nend").fill({{"a", ""}, {"b", ""}}), "end");
  EXPECT_EQ(Template("${a}\n  ${b}\nend").fill({{"a", ""}, {"b", "1\n2"}}), "  1\n  2\nend");
  EXPECT_EQ(Template("x = ${a};").fill({{"a", "1 +\n2"}}), "x = 1 +\n2;");
}

TEST(Texts, NamesMustAgree) {
  EXPECT_THROW(Template("${a}").fill({}), Bug);
  EXPECT_THROW(Template("${a}").fill({{"a", "1"}, {"b", "2"}}), Bug);
  EXPECT_THROW(Template("${a"), Bug);
  EXPECT_THROW(Template("${}"), Bug);
}

TEST(Texts, IndentAndJoin) {
  EXPECT_EQ(indent("a\n\nb\n", 2), "  a\n\n  b\n");
  EXPECT_EQ(join({"a", "b"}, ", "), "a, b");
  EXPECT_EQ(join({}, ", "), "");
}

}  // namespace
}  // namespace obelisk
