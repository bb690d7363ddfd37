#include "ops/test/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace obelisk::ops::test {
namespace {

/// A sample with its inferred types, and a Call that borrows from it.
struct Prepared {
  explicit Prepared(const Sample& sample)
      : tensors(sample.inputs),
        call{.op = sample.op, .attrs = sample.attrs, .outputs = sample.outputs} {
    for (const Tensor& input : tensors) {
      call.inputs.push_back(input.empty() ? nullptr : &input.type());
      call.constants.push_back(input.empty() ? nullptr : &input);
      pointers.push_back(input.empty() ? nullptr : &input);
    }
  }
  bool infer_types() {
    Result<Types> found = infer(call);
    EXPECT_TRUE(found.ok()) << (found.ok() ? "" : found.error().text());
    if (!found.ok()) return false;
    types = *found;
    for (const Type& type : types) call.results.push_back(&type);
    return true;
  }

  std::vector<Tensor> tensors;
  std::vector<const Tensor*> pointers;
  Types types;
  Call call;
};

/// Runs each added op at once.
class EagerExpander : public Expander {
 public:
  explicit EagerExpander(const Sample& sample) : sample_(sample) {}
  Value input(int index) override {
    if (index >= static_cast<int>(sample_.inputs.size()) || sample_.inputs[index].empty())
      return kAbsent;
    return constant(sample_.inputs[index]);
  }
  Value constant(Tensor tensor) override {
    values.push_back(std::move(tensor));
    return static_cast<Value>(values.size() - 1);
  }
  Value add(Op op, std::vector<Value> inputs, Attrs attrs) override {
    Sample step{op, std::move(attrs), {}, 1};
    for (Value value : inputs) step.inputs.push_back(value == kAbsent ? Tensor() : values[value]);
    std::vector<Tensor> outputs = run_loops(step);
    CHECK(!outputs.empty(), "{} has neither loop nor expansion", to_string(op));
    return constant(std::move(outputs[0]));
  }
  std::vector<Value> add_all(Op op, std::vector<Value> inputs, Attrs attrs, int outputs) override {
    Sample step{op, std::move(attrs), {}, outputs};
    for (Value value : inputs) step.inputs.push_back(value == kAbsent ? Tensor() : values[value]);
    std::vector<Value> all;
    for (Tensor& output : run_loops(step)) all.push_back(constant(std::move(output)));
    CHECK(!all.empty(), "{} has neither loop nor expansion", to_string(op));
    return all;
  }
  const Type& type(Value value) const override { return values[value].type(); }

  std::vector<Tensor> values;

 private:
  const Sample& sample_;
};

bool is_wide_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

}  // namespace

std::string describe(const Sample& sample) {
  std::string text = std::string(to_string(sample.op)) + "(";
  for (const Tensor& input : sample.inputs)
    text += (input.empty() ? "-" : to_string(input.type())) + " ";
  text += ")";
  for (const auto& [name, value] : sample.attrs.all()) {
    text += " " + name;
    if (const auto* number = std::get_if<int64_t>(&value)) text += fmt::format("={}", *number);
    if (const auto* number = std::get_if<double>(&value)) text += fmt::format("={}", *number);
    if (const auto* word = std::get_if<std::string>(&value)) text += "=" + *word;
  }
  return text;
}

std::vector<Tensor> run_reference(const Sample& sample) {
  Prepared prepared(sample);
  if (!prepared.infer_types()) return {};
  std::vector<Tensor> outputs;
  for (const Type& type : prepared.types) outputs.push_back(Tensor::allocate(type));
  const Status status = reference(prepared.call, prepared.pointers, outputs);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().text());
  return outputs;
}

std::vector<Tensor> run_loops(const Sample& sample) {
  Prepared prepared(sample);
  if (!prepared.infer_types()) return {};
  std::vector<Tensor> outputs;
  for (int output = 0; output < sample.outputs; ++output) {
    const std::optional<Loop> found = loop(prepared.call, output);
    if (!found) break;
    outputs.push_back(evaluate(*found, prepared.types[output], prepared.pointers));
  }
  return outputs.empty() ? run_expansion(sample) : outputs;
}

std::vector<Tensor> run_expansion(const Sample& sample) {
  Prepared prepared(sample);
  if (!prepared.infer_types()) return {};
  std::vector<Tensor> outputs;
  EagerExpander expander(sample);
  const Expansion expansion = expand(prepared.call, expander);
  for (size_t output = 0; output < expansion.size(); ++output) {
    outputs.push_back(expander.values[expansion[output]]);
    EXPECT_EQ(outputs.back().type(), prepared.types[output]) << "the expansion's type";
  }
  return outputs;
}

void expect_near(const Tensor& got, const Tensor& want, Tolerance limit, const std::string& what) {
  ASSERT_EQ(got.shape(), want.shape()) << what;
  const Shape strides = row_major_strides(want.shape());
  for (int64_t n = 0; n < want.count(); ++n) {
    double a, b;
    if (is_float(want.dtype())) {
      a = got.get_double(n), b = want.get_double(n);
      if ((std::isnan(a) && std::isnan(b)) || a == b) continue;
    } else {
      if (got.get_int(n) == want.get_int(n)) continue;
      a = static_cast<double>(got.get_int(n)), b = static_cast<double>(want.get_int(n));
      if (got.get_int(n) != want.get_int(n) && a == b)
        a = b + 0x1p60;  // 64-bit integers are compared as such
    }
    if (std::fabs(a - b) <= limit.absolute + limit.relative * std::fabs(b) && std::isfinite(a))
      continue;
    Shape at;
    for (size_t d = 0; d < strides.size(); ++d) at.push_back(n / strides[d] % want.shape()[d]);
    FAIL() << what << " at " << to_string(at) << ": got " << a << ", wanted " << b << ", off by "
           << a - b;
  }
}

void check(const Sample& sample) {
  SCOPED_TRACE(describe(sample));
  const std::vector<Tensor> want = run_reference(sample);
  if (want.empty()) return;
  const std::vector<Tensor> got = run_loops(sample);
  const Row& entry = row(sample.op);
  const bool declines = want[0].dtype() == DType::f8e8m0;  // casts with a rounding mode
  if (entry.loop || entry.expand) {
    EXPECT_TRUE(!got.empty() || declines) << "no loop and no expansion";
  }
  for (size_t output = 0; output < got.size(); ++output) {
    const Tolerance limit = tolerance(entry.accuracy, want[output].dtype());
    expect_near(got[output], want[output], limit, fmt::format("loop, output {}", output));
  }

  // Again as verification runs it, every float widened.
  Prepared narrow(sample);
  if (!narrow.infer_types()) return;
  std::vector<Tensor> inputs, outputs;
  std::vector<const Tensor*> pointers;
  for (const Tensor& input : sample.inputs)
    inputs.push_back(!input.empty() && is_wide_float(input.dtype()) ? input.cast(DType::f64)
                                                                    : input);
  for (const Tensor& input : inputs) pointers.push_back(input.empty() ? nullptr : &input);
  for (const Type& type : narrow.types)
    outputs.push_back(
        Tensor::allocate({is_wide_float(type.dtype) ? DType::f64 : type.dtype, type.shape}));
  const Status status = reference(narrow.call, pointers, outputs);
  ASSERT_TRUE(status.ok()) << status.error().text();
  for (size_t output = 0; output < outputs.size(); ++output) {
    const DType dtype = narrow.types[output].dtype;
    const Tolerance limit = is_float(dtype) ? tolerance(Accuracy::kRounded, dtype) : Tolerance{};
    const Tensor rounded =
        outputs[output].dtype() == dtype ? outputs[output] : outputs[output].cast(dtype);
    expect_near(rounded, want[output], limit, fmt::format("widened reference, output {}", output));
  }
}

Tensor random_tensor(DType dtype, Shape shape, int seed, bool wild) {
  std::mt19937_64 engine(static_cast<uint64_t>(seed) * 7919 + static_cast<uint64_t>(dtype));
  Tensor result = Tensor::allocate({dtype, std::move(shape)});
  constexpr double kSpecials[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, -1.0, 0.5};
  for (int64_t n = 0; n < result.count(); ++n) {
    const uint64_t word = engine();
    if (is_float(dtype)) {
      double plain = static_cast<double>(word >> 11) * 0x1p-53 * 6 - 3;
      if (dtype == DType::f8e8m0) plain = std::fabs(plain);  // it has no sign
      const bool special = wild && word % 4 == 0;
      result.set_double(n, special ? kSpecials[word / 4 % std::size(kSpecials)] : plain);
    } else if (dtype == DType::b1) {
      result.set_int(n, word & 1);
    } else {
      const int64_t small =
          is_signed(dtype) ? static_cast<int64_t>(word % 13) - 6 : static_cast<int64_t>(word % 7);
      result.set_int(n, wild && word % 3 == 0 ? static_cast<int64_t>(engine()) : small);
    }
  }
  return result;
}

Tensor tensor(DType dtype, Shape shape, const std::vector<double>& values) {
  return tensor_of(dtype, std::move(shape), values);
}

}  // namespace obelisk::ops::test
