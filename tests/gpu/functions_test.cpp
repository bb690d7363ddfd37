// Functions of device code that stand for exact ones where results have 16 bits (dialect.cuh),
// beside the exact ones in f64.
#include "device.h"

#include <random>

namespace obelisk::runtime::cuda {
namespace {

constexpr char kFunctions[] = R"(
#include "exec/program.cuh"
#include "dialect.h"
extern "C" __global__ void functions(const float* a, const float* b, float* exps, float* quotients, float* erfs, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  exps[i] = obk::exp_approx(b[i]);
  quotients[i] = obk::div_approx(a[i], obk::divisor(b[i]));
  erfs[i] = obk::one_plus_erf(b[i]);
}
)";

struct Functions : testing::Test {
  struct Answer {
    std::vector<float> exps, quotients, erfs;
  };
  /// Of a / b, exp(b), 1 + erf(b).
  static void of(Device& g, const std::vector<float>& a, const std::vector<float>& b,
                 Answer& answer) {
    const size_t bytes = a.size() * sizeof(float);
    DevicePointer in[2], out[3];
    for (DevicePointer& p : in) p = g.make(bytes, 0);
    for (DevicePointer& p : out) p = g.make(bytes, 0xff);
    ASSERT_EQ(g.d->CopyToDevice(in[0], a.data(), bytes), 0);
    ASSERT_EQ(g.d->CopyToDevice(in[1], b.data(), bytes), 0);
    ASSERT_EQ(g.d->CtxSynchronize(), 0);
    const int n = static_cast<int>(a.size());
    ASSERT_EQ(g.launch(g.function("functions", 0), (n + 255) / 256, 0, nullptr, in[0], in[1],
                       out[0], out[1], out[2], n),
              0);
    ASSERT_EQ(g.d->CtxSynchronize(), 0);
    std::vector<float>* to[] = {&answer.exps, &answer.quotients, &answer.erfs};
    for (int k = 0; k < 3; ++k) {
      to[k]->resize(a.size());
      ASSERT_EQ(g.d->CopyToHost(to[k]->data(), out[k], bytes), 0);
    }
  }
};

TEST_F(Functions, ShortFormsKeepTheirErrors) {
  OPEN(g, kFunctions);
  std::mt19937 random(7);
  std::uniform_real_distribution<float> to_zero(-100, 0), mantissa(1, 2);
  std::uniform_int_distribution<int> exponent(-149, 127), near_one(-16, 16);
  std::vector<float> a, b;
  for (int k = 0; k < 30000;
       ++k) {  // arguments of exp and erf; divisors of all sizes, quotients that 16 bits hold
    b.push_back(k % 2 ? to_zero(random)
                      : std::ldexp(k % 4 ? mantissa(random) : -mantissa(random), exponent(random)));
    a.push_back(std::ldexp(mantissa(random), near_one(random)) * b.back());
  }
  Answer got;
  of(g, a, b, got);
  if (HasFatalFailure()) return;
  int quotients = 0, exps = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    const double x = b[k];
    if (a[k] != 0 && std::isfinite(a[k])) {
      const double wanted = a[k] / x;
      ASSERT_LE(std::fabs(got.quotients[k] - wanted), 0x1p-21 * std::fabs(wanted))
          << a[k] << " / " << b[k];
      ++quotients;
    }
    if (x <= 0 && x > -87) {
      ASSERT_LE(std::fabs(got.exps[k] - std::exp(x)),
                (0x1p-22 + std::fabs(x) * 0x1p-23) * std::exp(x))
          << "exp(" << x << ")";
      ++exps;
    } else if (x <= -88 && x >= -100) {
      ASSERT_EQ(got.exps[k], 0.0f) << "exp(" << x << ")";
    }
    if (std::fabs(x) < 4) {
      ASSERT_LE(std::fabs(got.erfs[k] - (1 + std::erf(x))), 1.1e-5 * std::erfc(-x) + 1e-7)
          << "1 + erf(" << x << ")";
    }
  }
  EXPECT_GT(quotients, 20000);
  EXPECT_GT(exps, 10000);
}

TEST_F(Functions, QuotientsThatAreNoNumbers) {
  OPEN(g, kFunctions);
  const float inf = INFINITY;
  Answer got;
  of(g, {0, 1, -1, 1, inf, inf, NAN, 1}, {0, 0, 0, inf, 1, inf, 1, NAN}, got);
  if (HasFatalFailure()) return;
  const std::vector<float>& q = got.quotients;
  EXPECT_TRUE(std::isnan(q[0]) && std::isnan(q[5]) && std::isnan(q[6]) && std::isnan(q[7]));
  EXPECT_EQ((std::vector<float>{q[1], q[2], q[3], q[4]}), (std::vector<float>{inf, -inf, 0, inf}));
}

}  // namespace
}  // namespace obelisk::runtime::cuda
