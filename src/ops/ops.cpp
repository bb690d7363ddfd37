#include "ops/ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ops/families.h"

namespace obelisk::ops {
namespace {

constexpr auto kExact = Accuracy::kExact;
constexpr auto kRounded = Accuracy::kRounded;
constexpr auto kApprox = Accuracy::kApprox;
constexpr auto kSummed = Accuracy::kSummed;
constexpr auto kMap = Kind::kMap;
constexpr auto kReduce = Kind::kReduce;
constexpr auto kMove = Kind::kMove;
constexpr auto kCompute = Kind::kCompute;
constexpr auto kCustom = Kind::kCustom;

constexpr Row kRows[] = {
#define OP(name, kind, min, max, out, infer, cost, loop, reference, accuracy, ...) \
  {Op::name,                                                                       \
   #name,                                                                          \
   kind,                                                                           \
   min,                                                                            \
   max,                                                                            \
   out,                                                                            \
   infer,                                                                          \
   cost,                                                                           \
   loop,                                                                           \
   reference,                                                                      \
   accuracy __VA_OPT__(, ) __VA_ARGS__},
#include "ops/ops.def"
#undef OP
    {},  // a table without rows is still an array
};
constexpr size_t kRowCount = std::size(kRows) - 1;

[[maybe_unused]] void name_the_constants() {
  (void)kExact, (void)kRounded, (void)kApprox, (void)kSummed;
  (void)kMap, (void)kReduce, (void)kMove, (void)kCompute, (void)kCustom;
}

template <typename T>
const T* find(const std::map<std::string, Attr, std::less<>>& all, std::string_view name) {
  auto it = all.find(name);
  return it == all.end() ? nullptr : std::get_if<T>(&it->second);
}

int64_t bytes_of(const std::vector<const Type*>& types) {
  int64_t sum = 0;
  for (const Type* type : types)
    if (type) sum += type->bytes();
  return sum;
}

double elements_of(const std::vector<const Type*>& types) {
  double sum = 0;
  for (const Type* type : types)
    if (type) sum += static_cast<double>(type->count());
  return sum;
}

}  // namespace

std::span<const Row> rows() { return {kRows, kRowCount}; }

const Row& row(Op op) {
  CHECK(static_cast<size_t>(op) < kRowCount);
  return kRows[static_cast<size_t>(op)];
}

std::string_view to_string(Op op) { return row(op).name; }

std::optional<Op> parse_op(std::string_view name) {
  static const auto* by_name = [] {
    auto* map = new std::map<std::string_view, Op>;
    for (const Row& row : rows()) map->emplace(row.name, row.op);
    return map;
  }();
  auto it = by_name->find(name);
  if (it == by_name->end()) return std::nullopt;
  return it->second;
}

bool Attrs::has(std::string_view name) const { return all_.find(name) != all_.end(); }
Attrs& Attrs::set(std::string name, Attr value) {
  all_.insert_or_assign(std::move(name), std::move(value));
  return *this;
}
void Attrs::erase(std::string_view name) {
  if (auto it = all_.find(name); it != all_.end()) all_.erase(it);
}
int64_t Attrs::get_int(std::string_view name, int64_t otherwise) const {
  const int64_t* value = find<int64_t>(all_, name);
  return value ? *value : otherwise;
}
double Attrs::get_float(std::string_view name, double otherwise) const {
  if (const double* value = find<double>(all_, name)) return *value;
  if (const int64_t* value = find<int64_t>(all_, name)) return static_cast<double>(*value);
  return otherwise;
}
std::string Attrs::get_string(std::string_view name, std::string_view otherwise) const {
  const std::string* value = find<std::string>(all_, name);
  return value ? *value : std::string(otherwise);
}
std::vector<int64_t> Attrs::get_ints(std::string_view name, std::vector<int64_t> otherwise) const {
  const auto* value = find<std::vector<int64_t>>(all_, name);
  return value ? *value : otherwise;
}
std::vector<double> Attrs::get_floats(std::string_view name, std::vector<double> otherwise) const {
  const auto* value = find<std::vector<double>>(all_, name);
  return value ? *value : otherwise;
}
const Tensor* Attrs::get_tensor(std::string_view name) const { return find<Tensor>(all_, name); }

bool Attrs::operator==(const Attrs& other) const {
  if (all_.size() != other.all_.size()) return false;
  for (auto a = all_.begin(), b = other.all_.begin(); a != all_.end(); ++a, ++b) {
    if (a->first != b->first || a->second.index() != b->second.index()) return false;
    if (const Tensor* left = std::get_if<Tensor>(&a->second)) {
      const Tensor& right = std::get<Tensor>(b->second);
      if (left->type() != right.type()) return false;
      if (hash_bytes(left->data(), left->bytes()) != hash_bytes(right.data(), right.bytes()))
        return false;
      continue;
    }
    const bool same = std::visit(
        [&](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<T, Tensor>) {
            return true;
          } else {
            return value == std::get<T>(b->second);
          }
        },
        a->second);
    if (!same) return false;
  }
  return true;
}

Result<std::vector<int64_t>> Call::ints(int input, std::string_view what) const {
  if (!has(input)) return bad_call(*this, fmt::format("input {} ({}) is missing", input, what));
  const Tensor* value = constants[input];
  if (!value || value->empty()) {
    return unsupported_call(*this, fmt::format("{} (input {}) depends on data", what, input),
                            "make it a constant, or bind its value with --bind");
  }
  return to_ints(*value);
}

Error bad_call(const Call& call, std::string message, std::string hint) {
  return Error{Code::kBadModel, "ops", fmt::format("{}: {}", to_string(call.op), message), "",
               std::move(hint)};
}
Error unsupported_call(const Call& call, std::string message, std::string hint) {
  return Error{Code::kUnsupported, "ops", fmt::format("{}: {}", to_string(call.op), message), "",
               std::move(hint)};
}

// By DType; the exchange format's numbers.
constexpr int64_t kFormatNumbers[kDTypes] = {11, 1, 10, 16, 17, 18, 19, 20, 24, 23, 7, 6,
                                             5,  3, 22, 26, 13, 12, 4,  2,  21, 25, 9};

std::optional<DType> dtype_of_number(int64_t number) {
  for (int dtype = 0; dtype < kDTypes; ++dtype)
    if (kFormatNumbers[dtype] == number) return static_cast<DType>(dtype);
  return std::nullopt;
}
int64_t number_of_dtype(DType dtype) { return kFormatNumbers[static_cast<int>(dtype)]; }

Result<int64_t> normalize_axis(const Call& call, int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) {
    return bad_call(call, fmt::format("axis {} but the tensor has rank {}", axis, rank),
                    fmt::format("an axis lies in [{}, {})", -rank, rank));
  }
  return axis < 0 ? axis + rank : axis;
}

Result<Types> infer(const Call& call) {
  const Row& entry = row(call.op);
  if (call.arity() < entry.min_inputs ||
      (entry.max_inputs >= 0 && call.arity() > entry.max_inputs)) {
    const std::string most = entry.max_inputs < 0 ? "any number" : std::to_string(entry.max_inputs);
    return bad_call(call, fmt::format("{} inputs, but it takes {} to {}", call.arity(),
                                      entry.min_inputs, most));
  }
  if (entry.max_outputs >= 0 && call.outputs > entry.max_outputs) {
    return bad_call(call, fmt::format("{} outputs asked for, but it makes at most {}", call.outputs,
                                      entry.max_outputs));
  }
  for (int input = 0; input < entry.min_inputs; ++input) {
    if (!call.has(input)) return bad_call(call, fmt::format("input {} is missing", input));
  }
  TRY(Types types, entry.infer(call));
  CHECK(static_cast<int>(types.size()) >= call.outputs, "{} inferred {} of {} outputs", entry.name,
        types.size(), call.outputs);
  types.resize(call.outputs);
  for (const Type& type : types) {
    int64_t count = 1;
    for (int64_t extent : type.shape) {
      if (extent < 0 || __builtin_mul_overflow(count, extent, &count) ||
          count > (int64_t{1} << 40)) {
        return bad_call(
            call, fmt::format("the output {} is too large or negative", to_string(type.shape)),
            "a tensor holds at most 2^40 elements");
      }
    }
  }
  return types;
}

Cost cost(const Call& call) { return row(call.op).cost(call); }

std::optional<Loop> loop(const Call& call, int output) {
  const Row& entry = row(call.op);
  if (!entry.loop) return std::nullopt;
  return entry.loop(call, output);
}

Expansion expand(const Call& call, Expander& expander) {
  const Row& entry = row(call.op);
  return entry.expand ? entry.expand(call, expander) : Expansion{};
}

Status reference(const Call& call, std::span<const Tensor* const> inputs,
                 std::span<Tensor> outputs) {
  const Row& entry = row(call.op);
  CHECK(entry.reference != nullptr, "{} has no reference", entry.name);
  // Nothing is asked for, and extents beside those of 0 may be of any size.
  if (std::all_of(outputs.begin(), outputs.end(),
                  [](const Tensor& output) { return output.count() == 0; }))
    return ok_status();
  return entry.reference(call, inputs, outputs);
}

Cost cost_move(const Call& call) {
  return {{bytes_of(call.inputs)}, {bytes_of(call.results)}, {0}};
}
Cost cost_map(const Call& call) {
  return {{bytes_of(call.inputs)}, {bytes_of(call.results)}, {elements_of(call.results)}};
}
Cost cost_reduce(const Call& call) {
  return {{bytes_of(call.inputs)}, {bytes_of(call.results)}, {elements_of(call.inputs)}};
}

Tolerance tolerance(Accuracy accuracy, DType dtype) {
  if (accuracy == Accuracy::kExact || dtype == DType::b1) return {};
  if (is_integer(dtype)) return accuracy == Accuracy::kRounded ? Tolerance{} : Tolerance{1, 0};
  // One unit in the last place of the type, relative to the value.
  double ulp = 0x1p-23;
  switch (dtype) {
    case DType::f64:
      ulp = 0x1p-52;
      break;
    case DType::f32:
      ulp = 0x1p-23;
      break;
    case DType::f16:
      ulp = 0x1p-10;
      break;
    case DType::bf16:
      ulp = 0x1p-7;
      break;
    case DType::f8e4m3fn:
    case DType::f8e4m3fnuz:
      ulp = 0x1p-3;
      break;
    case DType::f8e5m2:
    case DType::f8e5m2fnuz:
      ulp = 0x1p-2;
      break;
    case DType::f4e2m1:
      ulp = 0x1p-1;
      break;
    case DType::f8e8m0:
      ulp = 1;
      break;
    default:
      break;
  }
  switch (accuracy) {
    case Accuracy::kExact:
      return {};
    case Accuracy::kRounded:
      return {ulp * 0x1p-10, ulp};
    case Accuracy::kApprox:
      return {ulp * 4, ulp * 8};
    case Accuracy::kSummed:
      return {ulp * 64, ulp * 64};
  }
  return {};
}

}  // namespace obelisk::ops
