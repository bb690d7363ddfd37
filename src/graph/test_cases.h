/// graph/test_cases.h — text cases for whatever turns a graph into a graph, or into another text.
/// For tests only (it speaks googletest).
///
///   Adding zero changes nothing.            a sentence that says what the case shows
///   in:
///   graph "g" { ... }
///   out:                                    the exact text of the result; `out: unchanged` where
///   it equals the input graph "g" { ... }
///   // -----                                between cases; a case may end in `error: TEXT`,
///   exactly Error::text(), instead of out:
///
/// @random stands for a constant's numbers (test_random.h). Results are verified. With the
/// environment variable OBELISK_BLESS=1 the file is rewritten with what came out.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/test_random.h"

namespace obelisk::graph {

struct TextCase {
  std::string sentence, in, out, error;
};

inline std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \n\r\t");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \n\r\t") - first + 1));
}

inline std::vector<TextCase> read_cases(std::string_view text) {
  std::vector<TextCase> cases;
  TextCase now;
  std::string* part = &now.sentence;
  const auto finish = [&] {
    for (std::string* each : {&now.sentence, &now.in, &now.out, &now.error}) *each = trimmed(*each);
    if (!now.in.empty()) cases.push_back(now);
    now = {};
    part = &now.sentence;
  };
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line == "// -----") {
      finish();
    } else if (line == "in:") {
      part = &now.in;
    } else if (line.starts_with("out:")) {
      part = &now.out;
      *part += std::string(line.substr(4)) + "\n";
    } else if (line.starts_with("error:")) {
      part = &now.error;
      *part += std::string(line.substr(6)) + "\n";
    } else {
      *part += std::string(line) + "\n";
    }
  }
  finish();
  return cases;
}

/// What comes of a case's graph, as text, is `out`. `path` is relative to the root of the sources.
/// Failures are googletest failures that show the case's sentence.
inline void run_text_cases(const std::string& path,
                           const std::function<Result<std::string>(Graph)>& step) {
  const std::string file = std::string(OBELISK_SOURCE_DIR) + "/" + path;
  const Result<std::string> text = read_file(file);
  ASSERT_TRUE(text.ok()) << text.error().text();
  const bool bless = std::getenv("OBELISK_BLESS") != nullptr;
  std::vector<TextCase> cases = read_cases(*text);
  EXPECT_FALSE(cases.empty()) << path << " has no cases";
  std::string blessed;
  for (TextCase& one : cases) {
    SCOPED_TRACE(path + ": " + one.sentence);
    EXPECT_TRUE(bless || one.out.empty() != one.error.empty()) << "a case ends in out: or error:";
    std::string out, error, before;
    Result<Graph> graph = parse(with_random(one.in, 1));
    Result<std::string> made = Error{};
    if (graph.ok()) {
      before = trimmed(print(*graph));
      made = step(std::move(*graph));
    } else {
      made = graph.error();
    }
    if (made.ok()) {
      out = trimmed(*made);
      if (out == before && (bless ? out == one.in : one.out == "unchanged")) out = "unchanged";
    } else {
      error = trimmed(made.error().text());
    }
    if (bless) {
      blessed += (blessed.empty() ? "" : "// -----\n") + one.sentence + "\nin:\n" + one.in + "\n";
      blessed += !error.empty()
                     ? "error: " + error + "\n"
                     : "out:" + std::string(out == "unchanged" ? " " : "\n") + out + "\n";
    } else {
      EXPECT_EQ(out, one.out);
      EXPECT_EQ(error, one.error);
    }
  }
  if (bless && blessed != *text) {
    const Status written = write_file(file, blessed);
    EXPECT_TRUE(written.ok()) << written.error().text();
  }
}

/// The same of a step that makes a graph, which is verified.
inline void run_cases(const std::string& path, const std::function<Result<Graph>(Graph)>& step) {
  run_text_cases(path, [&](Graph graph) -> Result<std::string> {
    TRY(const Graph made, step(std::move(graph)));
    const Status sound = verify(made);
    EXPECT_TRUE(sound.ok()) << sound.error().text() << "\n" << print(made);
    return print(made);
  });
}

}  // namespace obelisk::graph
