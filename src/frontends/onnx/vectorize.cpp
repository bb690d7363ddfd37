// TfIdfVectorizer over integers, decomposed into comparisons and sums.
#include <algorithm>

#include "frontends/onnx/handlers.h"

namespace obelisk::frontends::onnx {
namespace {

/// Rows of tokens and the n-grams that are counted in them.
struct Vectorizer {
  Site& site;
  Item tokens;  // i64 [rows, length]
  int64_t rows, length, most_skipped;
  std::vector<int64_t> pool;

  /// How often each of the `count` n-grams that stand at `start` in the pool occurs in each row:
  /// f32 [rows, count]. Between neighbours of an n-gram 0 to `most_skipped` tokens are skipped.
  Item occurrences(int64_t n, int64_t start, int64_t count) {
    Item total;
    for (int64_t skipped = 0; skipped <= (n == 1 ? 0 : most_skipped) && site.ok(); ++skipped) {
      const int64_t step = skipped + 1, places = length - (n - 1) * step;
      if (places <= 0) break;
      Item match;
      for (int64_t t = 0; t < n; ++t) {
        std::vector<int64_t> wanted;
        for (int64_t gram = 0; gram < count; ++gram) wanted.push_back(pool[start + gram * n + t]);
        const Item part =
            site.reshape(site.slice(tokens, 1, t * step, t * step + places), {rows, 1, places});
        const Item equal =
            site.emit("Equal", {part, Item::of(tensor_of(wanted).reshaped({1, count, 1}))});
        match = t == 0 ? equal : site.emit("And", {match, equal});
      }
      const Item found = site.emit("ReduceSum", {site.cast(match, DType::f32), site.vector({2})},
                                   ops::Attrs().set("keepdims", int64_t{0}));
      total = total.is_tensor() ? site.emit("Add", {total, found}) : found;
    }
    return total.is_tensor() ? total : site.filled(DType::f32, {rows, count}, 0);
  }
};

}  // namespace

void import_tfidf_vectorizer(Site& site) {
  if (site.attrs.has("pool_strings"))
    return site.refuse("its pool holds strings", "map tokens to integers outside of the model");
  const std::vector<int64_t> pool = site.attrs.get_ints("pool_int64s");
  const std::vector<int64_t> starts = site.attrs.get_ints("ngram_counts");
  const std::vector<int64_t> indexes = site.attrs.get_ints("ngram_indexes");
  const std::vector<double> weights = site.attrs.get_floats("weights");
  const std::string mode = site.attrs.get_string("mode", "TF");
  const int64_t shortest = site.attrs.get_int("min_gram_length", 1),
                longest = site.attrs.get_int("max_gram_length", 1);
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF")
    return site.contradict(fmt::format("mode '{}'", mode), "one of TF, IDF, TFIDF");
  if (!site.in(0).is_tensor() || !is_integer(site.type(0).dtype) || site.rank(0) > 2)
    return site.contradict("it takes integers [tokens] or [rows, tokens]");
  if (indexes.empty() || *std::min_element(indexes.begin(), indexes.end()) < 0)
    return site.contradict("ngram_indexes are empty or negative");
  if (!weights.empty() && weights.size() != indexes.size())
    return site.contradict(
        fmt::format("{} weights for {} n-grams", weights.size(), indexes.size()));
  const int64_t last = *std::max_element(indexes.begin(), indexes.end());
  constexpr int64_t kMostOutputs = int64_t{1} << 24;
  if (last >= kMostOutputs) return site.refuse(fmt::format("it has an output {}", last));
  const int64_t outputs = last + 1;

  const bool flat = site.rank(0) < 2;
  const int64_t rows = flat ? 1 : site.shape(0)[0];
  const int64_t length = element_count(site.shape(0)) / std::max<int64_t>(rows, 1);
  Vectorizer made{site,
                  site.cast(site.reshape(site.in(0), {rows, length}), DType::i64),
                  rows,
                  length,
                  site.attrs.get_int("max_skip_count", 0),
                  pool};
  Items counted;
  std::vector<int64_t> column_of(static_cast<size_t>(outputs), -1);
  std::vector<double> weight_of(static_cast<size_t>(outputs), 1);
  int64_t columns = 0;
  size_t gram = 0;
  for (size_t k = 0; k < starts.size(); ++k) {
    const auto n = static_cast<int64_t>(k) + 1, size = static_cast<int64_t>(pool.size());
    const int64_t start = starts[k], end = k + 1 < starts.size() ? starts[k + 1] : size;
    if (start < 0 || end < start || end > size || (end - start) % n != 0)
      return site.contradict(fmt::format("ngram_counts do not fit a pool of {}", size));
    const int64_t count = (end - start) / n;
    if (gram + static_cast<size_t>(count) > indexes.size())
      return site.contradict(fmt::format("{} ngram_indexes for more n-grams", indexes.size()));
    const bool counts = n >= shortest && n <= longest && count > 0;
    for (int64_t g = 0; g < count; ++g, ++gram) {
      if (!counts) continue;
      column_of[static_cast<size_t>(indexes[gram])] = columns + g;
      if (!weights.empty()) weight_of[static_cast<size_t>(indexes[gram])] = weights[gram];
    }
    if (!counts) continue;
    counted.push_back(made.occurrences(n, start, count));
    columns += count;
  }
  counted.push_back(site.filled(DType::f32, {rows, 1}, 0));  // outputs that no n-gram has
  for (int64_t& column : column_of) column = column < 0 ? columns : column;
  Item y = site.emit("Gather", {site.concat(counted, 1), site.vector(column_of)},
                     ops::Attrs().set("axis", int64_t{1}));
  if (mode == "IDF")
    y = site.cast(site.emit("Greater", {y, site.scalar(DType::f32, 0)}), DType::f32);
  if (mode != "TF") {
    y = site.emit("Mul", {y, Item::of(tensor_of(DType::f32, {1, outputs}, weight_of))});
  }
  site.finish(flat ? site.reshape(y, {outputs}) : y);
}

}  // namespace obelisk::frontends::onnx
