/// ops/test/golden.h — one call of an op with values, against which every column of its row is
/// tested.
///
///   infer      accepts the call, with all inputs known and, where it can, with none
///   reference  gives `want` where a sample has it; carried in f64, as verification does, it gives
///   the same loop       evaluated point by point it gives what the reference gives expand where it
///   answers, its steps give what the reference gives
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/ops.h"
#include "ops/test/sample.h"

namespace obelisk::ops {

struct Sample {
  Op op;
  std::vector<Tensor> inputs;  // a default Tensor where an optional input is absent
  Attrs attrs = {};
  std::vector<Tensor> want =
      {};  // hand-checked answers, one an output; none: the columns must agree with each other
  int outputs = 1;
};

inline Tensor ints(Shape shape, const std::vector<double>& values, DType dtype = DType::i64) {
  return tensor_of(dtype, std::move(shape), values);
}
inline Tensor floats(Shape shape, const std::vector<double>& values, DType dtype = DType::f32) {
  return tensor_of(dtype, std::move(shape), values);
}
/// Values in [low, high), rounded to the type; the same for the same seed on every machine.
inline Tensor random_tensor(DType dtype, Shape shape, double low = -2, double high = 2,
                            unsigned seed = 1) {
  std::mt19937 engine(seed);
  Tensor tensor = Tensor::allocate({dtype, std::move(shape)});
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double unit = static_cast<double>(engine()) / 4294967296.0;
    const double value = low + (high - low) * unit;
    if (is_float(dtype))
      tensor.set_double(i, value);
    else
      tensor.set_int(i, static_cast<int64_t>(std::floor(value)));
  }
  return tensor;
}
/// 0, 1, 2, ... of any type.
inline Tensor counting(DType dtype, Shape shape, int64_t first = 0) {
  Tensor tensor = Tensor::allocate({dtype, std::move(shape)});
  for (int64_t i = 0; i < tensor.count(); ++i) {
    if (is_float(dtype))
      tensor.set_double(i, static_cast<double>(first + i));
    else
      tensor.set_int(i, first + i);
  }
  return tensor;
}

/// Names the first element of `got` that is further from `want` than the accuracy allows.
inline void expect_near(const Tensor& got, const Tensor& want, Accuracy accuracy,
                        const std::string& what) {
  ASSERT_EQ(to_string(got.shape()), to_string(want.shape())) << what;
  const DType narrow = bits(got.dtype()) < bits(want.dtype()) ? got.dtype() : want.dtype();
  const Tolerance allowed = tolerance(accuracy, narrow);
  for (int64_t i = 0; i < want.count(); ++i) {
    if (!is_float(want.dtype())) {
      const int64_t a = got.get_int(i), b = want.get_int(i);
      ASSERT_LE(a < b ? static_cast<uint64_t>(b) - static_cast<uint64_t>(a)
                      : static_cast<uint64_t>(a) - static_cast<uint64_t>(b),
                static_cast<uint64_t>(allowed.absolute))
          << what << ": element " << i << " is " << a << ", wanted " << b;
      continue;
    }
    const double a = got.get_double(i), b = want.get_double(i);
    if (std::isnan(a) && std::isnan(b)) continue;
    if (a == b) continue;
    ASSERT_LE(std::fabs(a - b), allowed.absolute + allowed.relative * std::fabs(b))
        << what << ": element " << i << " is " << a << ", wanted " << b;
  }
}

namespace sample_detail {

inline Call call_of(const Sample& sample, const std::vector<Tensor>& inputs, bool known) {
  Call call{sample.op, sample.attrs, {}, {}, sample.outputs, {}};
  for (const Tensor& input : inputs) {
    call.inputs.push_back(input.empty() ? nullptr : &input.type());
    call.constants.push_back(input.empty() || !known ? nullptr : &input);
  }
  return call;
}

inline bool widens(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

}  // namespace sample_detail

inline void check(const Sample& sample) {
  using namespace sample_detail;
  const Row& entry = row(sample.op);
  std::string name(entry.name);
  for (const Tensor& input : sample.inputs)
    name += " " + (input.empty() ? "-" : to_string(input.type()));
  SCOPED_TRACE(name);
  for (bool known : {true, false}) {
    Call call = call_of(sample, sample.inputs, known);
    auto inferred = infer(call);
    if (!inferred.ok() && !known && inferred.error().code == Code::kUnsupported) continue;
    ASSERT_TRUE(inferred.ok()) << inferred.error().text();
    const Types types = *inferred;
    for (const Type& type : types) call.results.push_back(&type);
    const Cost price = cost(call);
    EXPECT_GE(price.read.count, 0);
    EXPECT_GE(price.flops.count, 0);

    std::vector<const Tensor*> inputs;
    for (const Tensor& input : sample.inputs) inputs.push_back(input.empty() ? nullptr : &input);
    std::vector<Tensor> answers;
    for (const Type& type : types) answers.push_back(Tensor::allocate(type));
    auto status = reference(call, inputs, answers);
    ASSERT_TRUE(status.ok()) << status.error().text();
    for (size_t i = 0; i < sample.want.size(); ++i) {
      ASSERT_EQ(to_string(answers[i].type()), to_string(sample.want[i].type())) << "output " << i;
      expect_near(answers[i], sample.want[i], entry.accuracy, "reference");
    }

    // As verification runs it: every f32, f16 and bf16 in f64.
    std::vector<Tensor> wide_inputs, wide_answers;
    for (const Tensor& input : sample.inputs) {
      wide_inputs.push_back(!input.empty() && widens(input.dtype()) ? input.cast(DType::f64)
                                                                    : input);
    }
    std::vector<const Tensor*> wide;
    for (const Tensor& input : wide_inputs) wide.push_back(input.empty() ? nullptr : &input);
    for (const Type& type : types) {
      wide_answers.push_back(
          Tensor::allocate({widens(type.dtype) ? DType::f64 : type.dtype, type.shape}));
    }
    status = reference(call, wide, wide_answers);
    ASSERT_TRUE(status.ok()) << status.error().text();
    for (size_t i = 0; i < answers.size(); ++i) {
      expect_near(answers[i], wide_answers[i], entry.accuracy, "reference against itself in f64");
    }

    for (int output = 0; output < static_cast<int>(types.size()); ++output) {
      const auto form = loop(call, output);
      if (!form) continue;
      const Tensor got = evaluate(*form, types[output], inputs);
      expect_near(got, answers[output], entry.accuracy,
                  "loop of output " + std::to_string(output) + ": " + to_string(*form));
    }
    if (known && entry.expand) {
      const auto got =
          test::run_expansion({sample.op, sample.attrs, sample.inputs, sample.outputs});
      for (size_t output = 0; output < got.size(); ++output) {
        expect_near(got[output], answers[output], entry.accuracy,
                    "expansion, output " + std::to_string(output));
      }
    }
  }
}

/// The call must be refused by infer, with this code and a message that contains `text`.
inline void check_refused(const Sample& sample, Code code, const std::string& text,
                          bool known = true) {
  const Call call = sample_detail::call_of(sample, sample.inputs, known);
  const auto inferred = infer(call);
  ASSERT_FALSE(inferred.ok()) << to_string(sample.op) << " was accepted";
  EXPECT_EQ(inferred.error().code, code) << inferred.error().text();
  EXPECT_NE(inferred.error().text().find(text), std::string::npos) << inferred.error().text();
}

}  // namespace obelisk::ops
