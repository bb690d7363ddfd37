// The loader of compiled files. The version and the checksums of what the fuzzer made up are made
// right first, so that it gets behind them; a file that is taken must also give its graph, or say
// why not, as `--portable` asks of it. Its machine code is never run: that is trusted, as a program
// is.
#include "fuzz/fuzz.h"
#include "fuzz/mutate.h"
#include "runtime/runtime.h"

using namespace obelisk;

FUZZ_TARGET(obk) {
  auto file =
      std::make_shared<std::string>(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  fuzz::seal_obk(*file);
  const Result<runtime::Compiled> compiled =
      runtime::parse_obk(file->data(), file->size(), file, "fuzz.obk", true);
  if (!compiled.ok()) return;
  const Result<graph::Graph> graph = compiled->graph();
  if (graph.ok())
    CHECK(graph::verify(*graph).ok(), "a graph out of a compiled file does not verify");
}

FUZZ_MUTATOR(mutate_obk)
