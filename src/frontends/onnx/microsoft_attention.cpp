// Attention of the domain com.microsoft, as ONNX Runtime's optimisers and model builders write it,
// decomposed into standard ops: Attention, RotaryEmbedding, TensorScatter.
#include "frontends/onnx/handlers.h"

namespace obelisk::frontends::onnx {
namespace {

constexpr int64_t kMostPositions = int64_t{1} << 24;  // of a cache

/// [B, S, heads * size] → [B, heads, S, size]
Item apart(Site& site, const Item& item, int64_t heads) {
  const Shape& shape = item.type.shape;
  return site.transpose(site.reshape(item, {shape[0], shape[1], heads, shape[2] / heads}),
                        {0, 2, 1, 3});
}

/// [B, heads, S, size] → [B, S, heads * size]
Item together(Site& site, const Item& item) {
  const Shape& shape = item.type.shape;
  return site.reshape(site.transpose(item, {0, 2, 1, 3}),
                      {shape[0], shape[2], shape[1] * shape[3]});
}

/// A tensor [B, S, heads * size]; otherwise the node is refused or contradicts itself.
bool is_split(Site& site, int input, int64_t heads, const char* what) {
  if (!site.in(input).is_tensor()) {
    site.refuse(fmt::format("{} (input {}) is not given", what, input));
  } else if (site.rank(input) != 3) {
    site.refuse(fmt::format("{} of shape {} is not supported", what, to_string(site.shape(input))),
                "[batch, length, heads * size] is");
  } else if (heads <= 0 || site.shape(input)[2] % heads != 0) {
    site.contradict(fmt::format("{} columns do not make {} heads", site.shape(input)[2], heads));
  }
  return site.ok();
}

/// What a padding mask (1 where a key counts) and a bias add to the scores, or nothing.
Item added_to_scores(Site& site, const Item& padding, const Item& bias, DType dtype) {
  Item sum = bias;
  if (!padding.is_tensor()) return sum;
  const Shape& shape = padding.type.shape;
  if (shape.size() != 2 && shape.size() != 3) {
    site.refuse(fmt::format("a padding mask of shape {} is not supported", to_string(shape)),
                "[batch, length of the keys] is");
    return sum;
  }
  const Item dropped = site.emit("Equal", {padding, site.scalar(padding.type.dtype, 0)});
  const double filter = site.attrs.get_float("mask_filter_value", -10000);
  Item added = site.emit("Where", {dropped, site.scalar(dtype, filter), site.scalar(dtype, 0)});
  added = site.reshape(added, shape.size() == 2 ? Shape{shape[0], 1, 1, shape[1]}
                                                : Shape{shape[0], 1, shape[1], shape[2]});
  return sum.is_tensor() ? site.emit("Add", {added, sum}) : added;
}

struct Rotary {
  Item cosines, sines, positions;  // [most, size / 2] twice, [B, S]
  int64_t interleaved = 0;
};

Item rotated(Site& site, const Item& item, const Rotary& by) {
  return site.emit("RotaryEmbedding", {item, by.cosines, by.sines, by.positions},
                   ops::Attrs().set("interleaved", by.interleaved));
}

std::vector<int64_t> counting(int64_t begin, int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (int64_t k = 0; k < count; ++k) values[static_cast<size_t>(k)] = begin + k;
  return values;
}

/// With zeros behind its rows up to `length`.
Item grown(Site& site, const Item& cache, int64_t length) {
  Shape rest = cache.type.shape;
  if (rest[2] == length) return cache;
  rest[2] = length - rest[2];
  return site.concat({cache, site.filled(cache.type.dtype, rest, 0)}, 2);
}

}  // namespace

/// (query [B,S,E], key [B,T,E], value [B,T,V] or both by heads, bias [E+E+V]?, padding mask?,
/// what is added to the scores?, past key?, past value?) → answer, present key, present value
void import_multi_head_attention(Site& site) {
  enum { kQuery, kKey, kValue, kBias, kPadding, kAdded, kPastKey, kPastValue, kInputs };
  for (int input = kInputs; input < static_cast<int>(site.inputs.size()); ++input)
    if (site.has(input)) return site.refuse(fmt::format("input {} is not supported", input));
  const int64_t heads = site.attrs.get_int("num_heads", 0);
  if (!is_split(site, kQuery, heads, "a packed query")) return;
  const bool by_heads = site.in(kKey).is_tensor() && site.rank(kKey) == 4;
  if (!by_heads && (!is_split(site, kKey, heads, "a packed key") ||
                    !is_split(site, kValue, heads, "a packed value")))
    return;
  if (by_heads && (!site.in(kValue).is_tensor() || site.rank(kValue) != 4))
    return site.contradict("the key is given by heads, the value is not");
  Items parts{site.in(kQuery), site.in(kKey), site.in(kValue)};
  if (site.has(kBias)) {
    if (by_heads) return site.refuse("a bias of keys that are given by heads is not supported");
    int64_t columns = 0;
    for (const Item& part : parts) columns += part.type.shape[2];
    if (!site.in(kBias).is_tensor() || site.shape(kBias) != Shape{columns})
      return site.contradict(fmt::format("the bias does not have {} elements", columns));
    int64_t begin = 0;
    for (Item& part : parts) {
      const int64_t end = begin + part.type.shape[2];
      part = site.emit("Add", {part, site.slice(site.in(kBias), 0, begin, end)});
      if (!site.ok()) return;
      begin = end;
    }
  }
  for (Item& part : parts)
    if (part.type.rank() == 3) part = apart(site, part, heads);
  const DType dtype = parts[0].type.dtype;
  parts.push_back(added_to_scores(site, site.in(kPadding), site.in(kAdded), dtype));
  parts.insert(parts.end(), {site.in(kPastKey), site.in(kPastValue)});
  ops::Attrs attrs;
  attrs.set("is_causal", site.attrs.get_int("unidirectional", 0));
  if (const double scale = site.attrs.get_float("scale", 0); scale != 0) attrs.set("scale", scale);
  if (!site.ok()) return;
  Items made = site.emit("Attention", parts, attrs, site.wanted() > 1 ? 3 : 1);
  if (!site.ok()) return;
  made[0] = together(site, made[0]);
  site.outputs = std::move(made);
}

/// (query [B,S,E] or all three beside each other, key, value, past key [B,heads,P,size]?, past
/// value?, lengths with the new tokens - 1 [B], the longest of them, cosines?, sines?) → answer,
/// present key and value [B, heads, max(P, longest), size]. A sentence's new rows follow its own
/// past ones; what lies behind them in the caches is read by nobody.
void import_group_query_attention(Site& site) {
  enum { kQuery, kKey, kValue, kPastKey, kPastValue, kLengths, kLongest, kCos, kSin, kInputs };
  for (int input = kInputs; input < static_cast<int>(site.inputs.size()); ++input)
    if (site.has(input)) return site.refuse(fmt::format("input {} is not supported", input));
  if (site.attrs.get_int("smooth_softmax", 0) > 0)
    return site.refuse("smooth_softmax is not supported");
  const int64_t heads = site.attrs.get_int("num_heads", 0);
  const int64_t kv_heads = site.attrs.get_int("kv_num_heads", 0);
  constexpr int64_t kMostHeads = INT64_MAX / 3;  // packed, there are up to three times as many
  if (heads <= 0 || heads > kMostHeads || kv_heads <= 0 || heads % kv_heads != 0)
    return site.contradict(fmt::format("{} heads share {} of keys and values", heads, kv_heads));
  const bool packed = !site.has(kKey);
  if (!is_split(site, kQuery, packed ? heads + 2 * kv_heads : heads, "a query")) return;
  Items parts{site.in(kQuery), site.in(kKey), site.in(kValue)};
  if (packed) {
    const int64_t size = site.shape(kQuery)[2] / (heads + 2 * kv_heads);
    const int64_t ends[] = {heads * size, (heads + kv_heads) * size, (heads + 2 * kv_heads) * size};
    const Item all = site.in(kQuery);
    for (int k = 0; k < 3; ++k) parts[k] = site.slice(all, 2, k ? ends[k - 1] : 0, ends[k]);
  } else if (!is_split(site, kKey, kv_heads, "a key") ||
             !is_split(site, kValue, kv_heads, "a value")) {
    return;
  }
  const std::vector<int64_t> longest = site.ints(kLongest, "the total length");
  if (!site.ok()) return;
  const int64_t batch = site.shape(kQuery)[0], length = site.shape(kQuery)[1];
  const bool has_past = site.in(kPastKey).is_tensor() && site.in(kPastValue).is_tensor();
  if (has_past && (site.rank(kPastKey) != 4 || site.rank(kPastValue) != 4))
    return site.contradict("the past is not [batch, heads, length, size]");
  const int64_t past = has_past ? site.shape(kPastKey)[2] : 0;
  if (longest.size() != 1 || longest[0] < length || std::max(past, longest[0]) > kMostPositions)
    return site.contradict(fmt::format("{} new tokens, a past of {}, and a total length of {}",
                                       length, past, longest.empty() ? 0 : longest[0]));
  const int64_t total = std::max(past, longest[0]);
  const bool first = longest[0] == length;  // nobody has a past
  if (!site.in(kLengths).is_tensor() || site.shape(kLengths).empty() ||
      site.in(kLengths).type.count() != batch)
    return site.contradict("seqlens_k has not one length for each sentence");

  // How many rows each sentence has already: [B].
  const bool alike = first || batch == 1;  // the longest is everybody's
  const Item begins =
      alike ? site.filled(DType::i64, {batch}, static_cast<double>(longest[0] - length))
            : site.emit("Add", {site.cast(site.reshape(site.in(kLengths), {batch}), DType::i64),
                                site.scalar(DType::i64, static_cast<double>(1 - length))});
  const Item positions =
      site.emit("Add", {site.reshape(begins, {batch, 1}),
                        site.reshape(site.vector(counting(0, length)), {1, length})});
  parts = {apart(site, parts[0], heads), apart(site, parts[1], kv_heads),
           apart(site, parts[2], kv_heads)};
  if (site.attrs.get_int("do_rotary", 0) != 0) {
    if (!site.has(kCos) || !site.has(kSin)) return site.contradict("cosines or sines are missing");
    const Rotary rotary{site.in(kCos), site.in(kSin), site.expand(positions, {batch, length}),
                        site.attrs.get_int("rotary_interleaved", 0)};
    for (int k : {0, 1}) parts[k] = rotated(site, parts[k], rotary);
  }
  if (!site.ok()) return;
  Items present{parts[1], parts[2]};
  if (total > length || has_past) {
    for (int k : {0, 1}) {
      const Shape& shape = present[k].type.shape;
      Item cache =
          has_past ? grown(site, site.in(kPastKey + k), total)
                   : site.filled(present[k].type.dtype, {shape[0], shape[1], total, shape[3]}, 0);
      if (alike && past == longest[0] - length)  // the new rows end the cache
        present[k] = past > 0 ? site.concat({site.in(kPastKey + k), present[k]}, 2) : present[k];
      else
        present[k] = site.emit("TensorScatter", {cache, present[k], begins});
    }
  }
  // Key j counts for the token at position p where p - window < j <= p.
  const Item at = site.reshape(positions, {batch, 1, length, 1});
  const Item keys = site.reshape(site.vector(counting(0, total)), {1, 1, 1, total});
  Item counts = site.emit("LessOrEqual", {keys, at});
  if (const int64_t window = site.attrs.get_int("local_window_size", -1); window > 0) {
    const Item oldest =
        site.emit("Sub", {at, site.scalar(DType::i64, static_cast<double>(window))});
    counts = site.emit("And", {counts, site.emit("Greater", {keys, oldest})});
  }
  ops::Attrs attrs;
  if (const double scale = site.attrs.get_float("scale", 0); scale != 0) attrs.set("scale", scale);
  if (const double cap = site.attrs.get_float("softcap", 0); cap != 0) attrs.set("softcap", cap);
  const Item answer = site.emit("Attention", {parts[0], present[0], present[1], counts}, attrs);
  if (!site.ok()) return;
  site.outputs = {together(site, answer), present[0], present[1]};
}

}  // namespace obelisk::frontends::onnx
