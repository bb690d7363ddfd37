// The parser of the text form. What it takes must be sound, and printing must be a fixed point.
#include "fuzz/fuzz.h"
#include "graph/graph.h"

using namespace obelisk;

FUZZ_TARGET(ir) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const Result<graph::Graph> first = graph::parse(text);
  if (!first.ok()) return;
  const Status sound = graph::verify(*first);
  CHECK(sound.ok(), "{}", sound.error().text());
  const std::string printed = graph::print(*first, {.all_data = true});
  const Result<graph::Graph> second = graph::parse(printed);
  CHECK(second.ok(), "{}\n{}", second.error().text(), printed);
  const std::string again = graph::print(*second, {.all_data = true});
  CHECK(again == printed, "{}\n{}", printed, again);
}
