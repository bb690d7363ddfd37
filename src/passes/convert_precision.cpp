#include "passes/convert_precision.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "base/parallel.h"
#include "passes/precision_rules.h"
#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

bool is_converted(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

double largest(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 65504;
    case DType::bf16:
      return 0x1.fep127;
    case DType::f32:
      return 0x1.fffffep127;
    default:
      return 0x1.fffffffffffffp1023;
  }
}
/// Below it digits are lost.
double smallest(DType dtype) {
  return dtype == DType::f16 ? 0x1p-14 : dtype == DType::f64 ? 0x1p-1022 : 0x1p-126;
}

constexpr float kLargest = std::numeric_limits<float>::max();

/// Rounded to nearest; finite values beyond `limit` become it.
Tensor converted(const Tensor& from, DType to, double limit) {
  Tensor made = Tensor::allocate({to, from.shape()});
  const int64_t count = from.count();
  if (from.dtype() == DType::f32 && is_half(to)) {
    const char* x = from.as<char>();  // floats where a file has them: not aligned
    const auto most = static_cast<float>(limit);
    uint16_t* y = made.as_mutable<uint16_t>();
    constexpr int64_t kBlock = 1024;
    for_each_part_on_all_cores(count, [&](int64_t begin, int64_t end) {
      std::array<float, kBlock> block;
      for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t size = std::min(kBlock, end - at);
        std::memcpy(block.data(), x + at * 4, static_cast<size_t>(size) * 4);
        for (int64_t k = 0; k < size; ++k)
          block[k] = std::fabs(block[k]) <= kLargest ? std::clamp(block[k], -most, most) : block[k];
        narrow(to, block.data(), y + at, size);
      }
    });
    return made;
  }
  for (int64_t k = 0; k < count; ++k) {
    const double value = from.get_double(k);
    made.set_double(k, std::isfinite(value) ? std::clamp(value, -limit, limit) : value);
  }
  return made;
}

bool holds_huge(const Tensor& tensor, DType dtype) {
  const double most = largest(dtype);
  if (most >= largest(tensor.dtype())) return false;
  const int64_t count = tensor.count();
  if (tensor.dtype() == DType::f32) {
    const char* x = tensor.as<char>();  // floats where a file has them: not aligned
    std::atomic<int> found{0};          // a flag that is read when all have ended: relaxed
    for_each_part_on_all_cores(count, [&](int64_t begin, int64_t end) {
      int huge = 0;
      for (int64_t k = begin; k < end; ++k) {
        float value;
        std::memcpy(&value, x + k * 4, 4);
        value = std::fabs(value);
        huge |= (value > static_cast<float>(most)) & (value <= kLargest);
      }
      found.fetch_or(huge, std::memory_order_relaxed);
    });
    return found != 0;
  }
  for (int64_t k = 0; k < count; ++k) {
    const double value = std::fabs(tensor.get_double(k));
    if (value > most && std::isfinite(value)) return true;
  }
  return false;
}

/// A constant in 16 bits, as it is where none of its values needs a limit, and the largest of its
/// finite magnitudes, which tells.
struct Narrowed {
  Tensor tensor;
  float most = 0;
};

/// Of many constants of type f32 at once, each read once: what is cut by tensor leaves cores idle.
std::vector<Narrowed> narrowed(const std::vector<const Tensor*>& from, DType to) {
  constexpr int64_t kPart = 1 << 19, kBlock = 1024;
  struct Part {
    size_t tensor;
    int64_t begin, end;
  };
  std::vector<Narrowed> made(from.size());
  std::vector<void*> places;
  std::vector<Part> parts;
  for (size_t k = 0; k < from.size(); ++k) {
    made[k].tensor = Tensor::allocate({to, from[k]->shape()});
    places.push_back(made[k].tensor.mutable_data());
    for (int64_t at = 0; at < from[k]->count(); at += kPart)
      parts.push_back({k, at, std::min(from[k]->count(), at + kPart)});
  }
  std::vector<int32_t> most(parts.size());
  for_each_on_all_cores(parts.size(), [&](size_t k) {
    const Part& part = parts[k];
    const char* x = from[part.tensor]->as<char>();  // floats where a file has them: not aligned
    uint16_t* y = static_cast<uint16_t*>(places[part.tensor]);
    std::array<float, kBlock> block;
    std::array<int32_t, kBlock> words;  // as integers, magnitudes have the order of the floats
    int32_t largest_word = 0;
    for (int64_t at = part.begin; at < part.end; at += kBlock) {
      const int64_t size = std::min(kBlock, part.end - at);
      if (size < kBlock) block.fill(0);
      std::memcpy(block.data(), x + at * 4, static_cast<size_t>(size) * 4);
      narrow(to, block.data(), y + at, size);
      std::memcpy(words.data(), block.data(), sizeof words);
      for (size_t i = 0; i < kBlock; ++i) {  // of whole blocks: the compiler makes vectors of it
        const int32_t word = words[i] & 0x7fffffff;
        const int32_t finite = word < 0x7f800000 ? word : 0;
        largest_word = largest_word < finite ? finite : largest_word;
      }
    }
    most[k] = largest_word;
  });
  for (size_t k = 0; k < parts.size(); ++k) {
    float& known = made[parts[k].tensor].most;
    known = std::max(known, std::bit_cast<float>(most[k]));
  }
  return made;
}

/// Ops whose result counts when what they read counts.
bool keeps_counts(Op op) {
  return precision_rule(op) == PrecisionRule::kFollow || op == Op::MatMul || op == Op::Einsum ||
         op == Op::Gemm || op == Op::Floor || op == Op::Ceil || op == Op::Round || op == Op::Mod ||
         op == Op::CumSum || op == Op::Cast || op == Op::CastLike;
}

class Converter {
 public:
  Converter(const Graph& from, DType narrow, Remarks* remarks)
      : from_(from), narrow_(narrow), remarks_(remarks) {
    place_.assign(from.value_count(), kNone);
    find_positions();
    find_read_wide();
    narrow_weights();
  }

  Graph run() {
    to_.name = from_.name;
    for (ValueId input : from_.inputs()) {
      const graph::Value& value = from_.value(input);
      begin(input, to_.add_input(value.name, value.type),
            {.narrow = is_converted(value.type.dtype)});
    }
    for (NodeId id : from_.order()) convert(id);
    for (size_t k = 0; k < from_.outputs().size(); ++k) {
      const ValueId output = from_.outputs()[k];
      ValueId made = as(output, from_.type(output).dtype, kKeepAll);
      to_.mark_output(made, from_.output_names()[k], from_.in_place_of(k));
    }
    return tidy(std::move(to_));
  }

 private:
  // what becomes of finite values that the type cannot hold
  enum Limit { kKeepAll, kMask, kBound };
  struct What {
    bool narrow = false;  // is there in 16 bits
    bool counts = false;  // made of integers
    bool huge = false;    // may hold a mask that 16 bits do not
  };
  /// One value of the old graph in the types that were asked for.
  struct Place {
    ValueId first;  // as its op makes it
    What what;
    std::map<std::pair<DType, Limit>, ValueId> made;
  };

  /// Constants that are likely to be wanted in 16 bits, all at once on all cores.
  void narrow_weights() {
    if (narrow_ != DType::f16 && narrow_ != DType::bf16) return;
    constexpr int64_t kWorthIt = 1 << 12;
    std::vector<const Tensor*> tensors;
    std::vector<ValueId> ids;
    for (NodeId id : from_.order()) {
      const Node& node = from_.node(id);
      const PrecisionRule rule = precision_rule(node.op);
      if (rule != PrecisionRule::kNarrow && rule != PrecisionRule::kFollow) continue;
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        const ValueId in = node.inputs[k];
        if (in == kNone || !is_constant(in) || is_precise_input(node.op, k)) continue;
        const Tensor& tensor = from_.value(in).constant;
        if (tensor.dtype() != DType::f32 || tensor.count() < kWorthIt) continue;
        if (!narrowed_.try_emplace(in).second) continue;
        tensors.push_back(&tensor), ids.push_back(in);
      }
    }
    std::vector<Narrowed> made = narrowed(tensors, narrow_);
    for (size_t k = 0; k < ids.size(); ++k) {
      huge_constants_[ids[k]] = made[k].most > static_cast<float>(largest(narrow_));
      narrowed_[ids[k]] = std::move(made[k]);
    }
  }

  const Type& type(ValueId old) const { return from_.type(old); }
  bool is_float_value(ValueId old) const { return old != kNone && is_converted(type(old).dtype); }
  bool is_constant(ValueId old) const { return from_.value(old).is_constant(); }
  What what(ValueId old) const { return is_constant(old) ? What{} : places_[place_[old]].what; }

  void begin(ValueId old, ValueId made, What what) {
    place_[old] = static_cast<int>(places_.size());
    places_.push_back({made, what, {}});
    if (to_.value(made).name.empty()) to_.value(made).name = from_.value(old).name;
  }

  // ---- what leads to positions ------------------------------------------------------------------

  /// Values that only ops which read positions read, directly or through ops that keep counts.
  void find_positions() {
    positions_.assign(from_.value_count(), false);
    for (auto id = from_.order().rbegin(); id != from_.order().rend(); ++id)
      for (ValueId out : from_.node(*id).outputs)
        positions_[out] = is_float_value(out) && all_readers_position(out);
  }
  bool all_readers_position(ValueId value) const {
    const std::vector<NodeId> readers = from_.users(value);
    if (readers.empty() || from_.is_output(value)) return false;
    return std::all_of(readers.begin(), readers.end(), [&](NodeId reader) {
      const Node& node = from_.node(reader);
      if (leads_to_positions(node)) return true;
      for (size_t k = 0; k < node.inputs.size(); ++k)
        if (node.inputs[k] == value && !reads_positions(node.op, k)) return false;
      return true;
    });
  }
  bool leads_to_positions(const Node& node) const {
    if (node.op == Op::Cast && !is_float_value(node.outputs[0]))
      return !is_float(type(node.outputs[0]).dtype);
    return keeps_counts(node.op) && std::all_of(node.outputs.begin(), node.outputs.end(),
                                                [&](ValueId out) { return positions_[out]; });
  }

  // ---- what is read in f32 ----------------------------------------------------------------------

  /// Values that every reader takes in f32, directly or behind moves and further masks.
  void find_read_wide() {
    read_wide_.assign(from_.value_count(), false);
    for (auto id = from_.order().rbegin(); id != from_.order().rend(); ++id)
      for (ValueId out : from_.node(*id).outputs) {
        const std::vector<NodeId> readers = from_.users(out);
        read_wide_[out] = is_float_value(out) && !readers.empty() && !from_.is_output(out) &&
                          std::all_of(readers.begin(), readers.end(),
                                      [&](NodeId reader) { return reads_wide(reader, out); });
      }
  }
  bool reads_wide(NodeId reader, ValueId value) const {
    const Node& node = from_.node(reader);
    if (precision_rule(node.op) == PrecisionRule::kWide) return true;
    if (ops::row(node.op).kind == ops::Kind::kMove || takes_masks(node.op))
      return std::all_of(node.outputs.begin(), node.outputs.end(),
                         [&](ValueId out) { return read_wide_[out]; });
    for (size_t k = 0; k < node.inputs.size(); ++k)
      if (node.inputs[k] == value && !is_precise_input(node.op, k)) return false;
    return true;
  }

  // ---- a value in a type ------------------------------------------------------------------------

  ValueId as(ValueId old, DType dtype, Limit limit) {
    if (is_constant(old)) return constant(old, dtype, limit);
    Place& place = places_[place_[old]];
    if (!is_float_value(old) || to_.type(place.first).dtype == dtype) return place.first;
    if (limit != kMask || !place.what.huge || largest(dtype) >= largest(DType::f32))
      limit = kKeepAll;
    const auto [found, fresh] = place.made.try_emplace({dtype, limit}, kNone);
    if (!fresh) return found->second;
    ValueId value = place.first;
    const std::string name = producer_name(old);
    if (limit == kMask) {
      const DType own = to_.type(value).dtype;
      const double most = largest(dtype) / 2;
      value = to_.must_add(Op::Clip, {value, scalar(to_, own, -most), scalar(to_, own, most)}, {},
                           name);
    }
    ops::Attrs attrs;
    attrs.set("to", ops::number_of_dtype(dtype));
    if (bits(dtype) < bits(to_.type(value).dtype)) attrs.set("loose", int64_t{1});
    return found->second = to_.must_add(Op::Cast, {value}, std::move(attrs), name);
  }

  ValueId constant(ValueId old, DType dtype, Limit limit) {
    const graph::Value& value = from_.value(old);
    if (!is_float_value(old)) dtype = value.type.dtype;
    const auto [found, fresh] = constants_.try_emplace({old, dtype, limit}, kNone);
    if (!fresh) return found->second;
    if (dtype == value.type.dtype)
      return found->second = to_.add_constant(value.constant, value.name);
    const double most = limit == kMask    ? largest(dtype) / 2
                        : limit == kBound ? largest(dtype)
                                          : largest(DType::f64);
    const auto ahead = narrowed_.find(old);
    const bool is_ahead =
        dtype == narrow_ && ahead != narrowed_.end() && ahead->second.most <= most;
    return found->second = to_.add_constant(
               is_ahead ? ahead->second.tensor : converted(value.constant, dtype, most),
               value.name);
  }
  std::string producer_name(ValueId old) const {
    const NodeId producer = from_.value(old).producer;
    return producer == kNone ? std::string() : from_.node(producer).name;
  }

  // ---- what a node computes in ------------------------------------------------------------------

  struct Reads {
    bool any = false, narrow = false, wide = false;  // of floats that are not constant
    bool all_count = true, huge = false;
    bool huge_constant = false, tiny_constant = false;
  };
  Reads look(const Node& node) {
    Reads reads;
    for (ValueId in : node.inputs) {
      if (!is_float_value(in)) continue;
      if (is_constant(in)) {
        const auto [known, fresh] = huge_constants_.try_emplace(in, false);
        if (fresh) known->second = holds_huge(from_.value(in).constant, narrow_);
        reads.huge_constant |= known->second;
        const auto one = uniform_value(from_, in);
        reads.tiny_constant |= one && *one != 0 && std::fabs(*one) < smallest(narrow_);
        continue;
      }
      const What is = what(in);
      reads.any = true;
      (is.narrow ? reads.narrow : reads.wide) = true;
      reads.all_count = reads.all_count && is.counts;
      reads.huge |= is.huge;
    }
    reads.all_count = reads.all_count && reads.any;
    return reads;
  }

  /// Why a node computes in f32, or nullptr where it does not.
  const char* wide_because(const Node& node, const Reads& reads) const {
    switch (precision_rule(node.op)) {
      case PrecisionRule::kWide:
        return "it overflows, or loses digits, in 16 bits";
      case PrecisionRule::kAsIs:
      case PrecisionRule::kNarrow:
        return nullptr;
      case PrecisionRule::kFollow:
        break;
    }
    if (reads.any && !reads.narrow) return "all that it reads is wider";
    if (!reads.any && reads.huge_constant) return "16 bits do not hold its constant";
    if (node.op == Op::Div && !is_constant(node.inputs[1])) return "a quotient may be large";
    if (node.op == Op::Mul && node.inputs[0] == node.inputs[1]) return "a square may be large";
    if (ops::row(node.op).kind != ops::Kind::kMap) return nullptr;
    // A row of which all is hidden weighs every key alike only while its scores vanish in the mask.
    if (takes_masks(node.op) && (reads.huge || reads.huge_constant) && read_wide_[node.outputs[0]])
      return "16 bits do not hold its mask, and what reads it reads f32";
    const bool bounds = node.op == Op::Clip || node.op == Op::Max || node.op == Op::Min;
    if (reads.tiny_constant) return "16 bits lose digits of its constant";
    const bool beyond = reads.huge_constant && !bounds && !takes_masks(node.op);
    return beyond ? "16 bits do not hold its constant" : nullptr;
  }

  /// Of nodes with floats: those of integers alone have nothing to convert.
  void tell(NodeId id, const Reads& reads, const char* why) const {
    const bool half = is_half(narrow_);
    if (remarks_ && half && reads.any) remarks_->left(from_, id, why);
  }

  void convert(NodeId id) {
    const Node& node = from_.node(id);
    if ((node.op == Op::Cast || node.op == Op::CastLike) && is_float_value(node.inputs[0]) &&
        is_float_value(node.outputs[0])) {
      if (!is_constant(node.inputs[0]))
        place_[node.outputs[0]] = place_[node.inputs[0]];
      else
        begin(node.outputs[0], constant(node.inputs[0], narrow_, kBound), {.narrow = true});
      return;
    }
    const Reads reads = look(node);
    const bool positions =
        keeps_counts(node.op) && std::any_of(node.outputs.begin(), node.outputs.end(),
                                             [&](ValueId out) { return positions_[out]; });
    const bool from_integers =
        node.op == Op::Range || node.op == Op::Cast || node.op == Op::CastLike;
    const bool counts = positions || from_integers || (reads.all_count && keeps_counts(node.op));
    bool f64 = false;  // counts keep the digits that they had
    for (const auto* side : {&node.inputs, &node.outputs})
      for (ValueId v : *side) f64 |= counts && v != kNone && type(v).dtype == DType::f64;
    const DType wide = f64 ? DType::f64 : DType::f32;
    const PrecisionRule rule = precision_rule(node.op);
    const char* because = counts ? "it counts, or leads to positions" : wide_because(node, reads);
    const bool stays = because != nullptr;
    if (stays) tell(id, reads, because);
    const Limit limit = takes_masks(node.op) ? kMask : kBound;

    Result<NodeId> made = Error{};
    if (rule != PrecisionRule::kAsIs && !stays) {
      made =
          add(node, limit, [&](size_t k) { return is_precise_input(node.op, k) ? wide : narrow_; });
      if (!made.ok()) made = add(node, limit, [&](size_t) { return narrow_; });
    }
    if (rule != PrecisionRule::kAsIs && !made.ok())
      made = add(node, kKeepAll, [&](size_t) { return wide; });
    if (!made.ok())
      made = add(node, kKeepAll, [&](size_t k) { return type(node.inputs[k]).dtype; });
    CHECK(made.ok(), "'{}' does not take the types that it had: {}", node.name,
          made.error().text());

    const bool huge = (reads.huge || reads.huge_constant || node.op == Op::ConstantOfShape) &&
                      node.op != Op::Clip &&
                      (rule == PrecisionRule::kFollow || node.op == Op::ConstantOfShape);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const ValueId out = to_.node(*made).outputs[k];
      const bool narrow = to_.type(out).dtype == narrow_;
      begin(node.outputs[k], out, {.narrow = narrow, .counts = counts, .huge = huge && !narrow});
    }
  }

  template <typename TypeOf>
  Result<NodeId> add(const Node& node, Limit limit, TypeOf type_of) {
    std::vector<ValueId> inputs;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const ValueId in = node.inputs[k];
      inputs.push_back(
          in == kNone ? kNone : as(in, is_float_value(in) ? type_of(k) : type(in).dtype, limit));
    }
    ops::Attrs attrs = node.attrs;
    Op op = node.op;
    if (op == Op::CastLike) {
      op = Op::Cast;
      inputs.resize(1);
      attrs.set("to", ops::number_of_dtype(type(node.outputs[0]).dtype));
    }
    if (op == Op::Cast && is_float_value(node.outputs[0]))
      attrs.set("to", ops::number_of_dtype(type(node.outputs[0]).dtype == DType::f64 ? DType::f64
                                                                                     : DType::f32));
    return to_.add_node(op, std::move(inputs), std::move(attrs), node.name,
                        static_cast<int>(node.outputs.size()));
  }

  const Graph& from_;
  const DType narrow_;
  Remarks* const remarks_;
  Graph to_;
  std::vector<bool> positions_;  // by old value
  std::vector<bool> read_wide_;  // by old value
  std::vector<int> place_;       // by old value, into places_
  std::vector<Place> places_;
  std::map<std::tuple<ValueId, DType, Limit>, ValueId> constants_;
  std::map<ValueId, bool> huge_constants_;
  std::map<ValueId, Narrowed> narrowed_;
};

}  // namespace

std::optional<Precision> parse_precision(std::string_view name) {
  if (name == "keep") return Precision::kKeep;
  if (name == "fp32") return Precision::kFp32;
  if (name == "tf32") return Precision::kTf32;
  if (name == "fp16") return Precision::kFp16;
  if (name == "bf16") return Precision::kBf16;
  return std::nullopt;
}

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::kKeep:
      break;
    case Precision::kFp32:
      return "fp32";
    case Precision::kTf32:
      return "tf32";
    case Precision::kFp16:
      return "fp16";
    case Precision::kBf16:
      return "bf16";
  }
  return "keep";
}

std::optional<DType> dtype_of(Precision precision) {
  switch (precision) {
    case Precision::kKeep:
      break;
    case Precision::kFp32:
    case Precision::kTf32:
      return DType::f32;
    case Precision::kFp16:
      return DType::f16;
    case Precision::kBf16:
      return DType::bf16;
  }
  return std::nullopt;
}

Result<Graph> convert_precision(Graph graph, Precision precision, Remarks* remarks) {
  const auto dtype = dtype_of(precision);
  if (!dtype) return graph;
  bool differs = false;
  for (ValueId v = 0; v < graph.value_count(); ++v)
    differs |= is_converted(graph.type(v).dtype) && graph.type(v).dtype != *dtype;
  return differs ? Converter(graph, *dtype, remarks).run() : std::move(graph);
}

}  // namespace obelisk::passes
