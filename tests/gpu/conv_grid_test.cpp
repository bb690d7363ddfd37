// Convolution tiles whose CTAs share a multiprocessor (conv_grid.cuh), a kernel a shape, against
// the definition in double; compiled without spills wherever the device compiler is.
#include <random>

#include "device.h"
#include "kernels/cuda/conv/conv.h"
#include "kernels/kernels.h"

namespace obelisk::runtime::cuda {
namespace {

struct Shape {
  int64_t images, in, height, width, kernel, stride, pad, out, gap;  // gap: elements behind a pixel
  int64_t pixels, channels, ctas_per_sm;                             // of a tile
  int64_t out_height() const { return (height + 2 * pad - kernel) / stride + 1; }
  int64_t out_width() const { return (width + 2 * pad - kernel) / stride + 1; }
  int64_t x_pixel() const { return in + gap; }
  int64_t image() const { return height * width * x_pixel(); }
  int64_t all() const { return images * out_height() * out_width(); }
};
const Shape kShapes[] = {
    {8, 64, 56, 56, 1, 1, 0, 256, 0, 128, 128, 2},  {8, 64, 14, 14, 3, 1, 1, 64, 0, 64, 64, 2},
    {8, 512, 28, 28, 1, 2, 0, 128, 0, 128, 128, 1}, {3, 256, 14, 14, 3, 2, 1, 128, 0, 64, 64, 1},
    {5, 1024, 7, 7, 1, 1, 0, 128, 0, 64, 128, 1},   {2, 288, 35, 35, 1, 1, 0, 64, 32, 128, 64, 2},
    {3, 80, 17, 19, 3, 1, 0, 96, 8, 128, 96, 2},    {2, 40, 9, 9, 5, 1, 2, 96, 0, 64, 32, 1},
    {3, 3, 32, 32, 7, 2, 3, 64, 0, 128, 64, 2},     {2, 4, 16, 16, 3, 1, 1, 64, 0, 128, 32, 2},
    {2, 42, 33, 31, 1, 1, 0, 42, 0, 128, 48, 2},    {2, 84, 23, 21, 1, 1, 0, 84, 0, 64, 64, 1},
    {1, 126, 21, 21, 1, 2, 0, 96, 0, 128, 96, 2},   {2, 10, 16, 16, 1, 1, 0, 32, 0, 128, 32, 2},
    {2, 168, 21, 21, 1, 1, 0, 168, 0, 128, 96, 2},  {2, 24, 14, 14, 3, 1, 1, 32, 2, 128, 32, 2},
    {1, 128, 21, 21, 1, 1, 0, 72, 0, 64, 64, 1},
};

constexpr const char* kText = R"cu(
#include "exec/barrier.cuh"
#include "conv/conv.cuh"
#define ENTRY(name, high, wide, pitch, residents, ...)                                              \
  extern "C" __global__ void __launch_bounds__(256, residents) name(const ObkConv* job, float* y,  \
                                                                    int all) {                     \
    extern __shared__ __align__(1024) char shared[];                                               \
    ObkConv g = *job;                                                                              \
    const int outputs = (int)g.out_channels, across = (outputs + wide - 1) / wide;                 \
    g.row = (int)blockIdx.x / across * high, g.pixels = min(high, all - (int)g.row);               \
    g.channel = (int)blockIdx.x % across * wide;                                                   \
    g.channels = min(wide, outputs - (int)g.channel);                                              \
    g.y = (float*)shared, g.scratch = shared;                                                      \
    OBK_CONV_GRID_BEGIN(kObkF16, g, __VA_ARGS__);                                                 \
    OBK_CONV_GRID_TILE(kObkF16, g, __VA_ARGS__);                                                  \
    const int own = (int)g.channels;                                                               \
    for (int i = threadIdx.x; i < (int)g.pixels * own; i += 256)                                   \
      y[((int)g.row + i / own) * outputs + (int)g.channel + i % own] =                             \
          g.y[i / own * pitch + i % own];                                                          \
  }
)cu";

std::string text_of() {
  std::string text = kText;
  int k = 0;
  for (const Shape& s : kShapes) {
    const int64_t pitch = s.channels + 8;
    text += fmt::format(
        "ENTRY(tile{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, 1, 1, {}, {}, {}, {}, {}, {}, "
        "{}, "
        "{}, {}, {}, {}, {})\n",
        k++, s.pixels, s.channels, pitch, s.ctas_per_sm, s.in, s.height, s.width, s.kernel,
        s.kernel, s.stride, s.stride, s.pad, s.pad, s.out_width(), s.out_height(),
        s.width * s.x_pixel(), s.x_pixel(), s.image(), s.pixels, s.channels, pitch, s.ctas_per_sm,
        s.out % s.channels == 0 ? 0 : s.out);
  }
  return text;
}

TEST(ConvGrid, EqualsTheDefinition) {
  const std::string text = text_of();
  OPEN(g, text.c_str());
  std::mt19937 random(9);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (size_t k = 0; k < std::size(kShapes); ++k) {
    SCOPED_TRACE(fmt::format("shape {}", k));
    const Shape& s = kShapes[k];
    if (few() && s.all() * s.out * s.in * s.kernel * s.kernel > 20'000'000) continue;
    const auto numbers = [&](int64_t count) {
      std::vector<uint16_t> bits(static_cast<size_t>(count));
      for (uint16_t& each : bits) each = float_to_f16(uniform(random));
      return bits;
    };
    const std::vector<uint16_t> x = numbers(s.images * s.image());
    const std::vector<uint16_t> w = numbers(s.out * s.in * s.kernel * s.kernel);
    std::vector<char> packed(static_cast<size_t>(
        kernels::cuda_conv_packed_bytes(kObkF16, s.out, s.in, s.kernel, s.kernel)));
    const int64_t taps = s.kernel * s.kernel;
    kernels::cuda_conv_pack(kObkF16, s.out, s.in, s.kernel, s.kernel, s.channels, w.data(),
                            s.in * taps, taps, s.kernel, 1, packed.data());
    const DevicePointer x_at = g.make(x.size() * 2, 0), w_at = g.make(packed.size() + 256, 0);
    g.d->CopyToDevice(x_at, x.data(), x.size() * 2);
    g.d->CopyToDevice(w_at, packed.data(), packed.size());
    ObkConv job = {.type = kObkF16, .tasks_per_worker = static_cast<int16_t>(s.ctas_per_sm)};
    job.in_channels = s.in, job.kernel_h = job.kernel_w = s.kernel, job.out_channels = s.out;
    job.height = s.height, job.width = s.width, job.stride_h = job.stride_w = s.stride;
    job.dilation_h = job.dilation_w = 1, job.pad_top = job.pad_left = s.pad;
    job.out_width = s.out_width(), job.x_pixel = s.x_pixel(), job.x_row = s.width * s.x_pixel();
    job.x_image = s.image(), job.pixels = s.pixels, job.channels = s.channels,
    job.y_pixel = s.channels + 8;
    job.x = reinterpret_cast<const void*>(x_at), job.weights = reinterpret_cast<const void*>(w_at);
    const DevicePointer table = g.make(sizeof job, 0);
    g.d->CopyToDevice(table, &job, sizeof job);
    std::vector<float> y(static_cast<size_t>(s.all() * s.out));
    const DevicePointer y_at = g.make(y.size() * 4, 0xff);
    const int shared = static_cast<int>(kernels::cuda_conv_scratch_bytes(&job));
    const int tiles = static_cast<int>((s.all() + s.pixels - 1) / s.pixels *
                                       ((s.out + s.channels - 1) / s.channels));
    const Handle f = g.function(fmt::format("tile{}", k).c_str(), shared);
    const int all = static_cast<int>(s.all());
    void* list[] = {const_cast<DevicePointer*>(&table), const_cast<DevicePointer*>(&y_at),
                    const_cast<int*>(&all)};
    ASSERT_EQ(g.d->Launch(f, static_cast<unsigned>(tiles), 1, 1, 256, 1, 1,
                          static_cast<unsigned>(shared), nullptr, list, nullptr),
              0);
    const Status ran = check(g.d->CtxSynchronize(), "run");
    ASSERT_TRUE(ran.ok()) << ran.error().text();
    g.d->CopyToHost(y.data(), y_at, y.size() * 4);
    for (int64_t at = 0; at < s.all(); ++at) {
      const int64_t image = at / (s.out_height() * s.out_width()),
                    of = at % (s.out_height() * s.out_width());
      for (int64_t o = 0; o < s.out; ++o) {
        if (random() % 16) continue;
        double sum = 0, size = 0.01;
        for (int64_t i = 0; i < s.kernel; ++i)
          for (int64_t j = 0; j < s.kernel; ++j) {
            const int64_t row = of / s.out_width() * s.stride - s.pad + i;
            const int64_t column = of % s.out_width() * s.stride - s.pad + j;
            if (row < 0 || row >= s.height || column < 0 || column >= s.width) continue;
            const int64_t from = image * s.image() + (row * s.width + column) * s.x_pixel();
            for (int64_t c = 0; c < s.in; ++c) {
              const double product =
                  static_cast<double>(f16_to_float(x[static_cast<size_t>(from + c)])) *
                  static_cast<double>(f16_to_float(
                      w[static_cast<size_t>((o * s.in + c) * taps + i * s.kernel + j)]));
              sum += product, size += std::fabs(product);
            }
          }
        ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(at * s.out + o)]), sum, 2e-6 * size)
            << "pixel " << at << " channel " << o;
      }
    }
  }
}

// The assembler keeps products apart from what waits for them, and no register lies in memory.
TEST(ConvGridCompile, NoSpills) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  auto cubin = compile_cubin(text_of(), "sm_90a");
  ASSERT_TRUE(cubin.ok()) << cubin.error().text();
  EXPECT_EQ(cubin->log.find("(C75"), std::string::npos) << cubin->log;
  for (size_t at = 0; (at = cubin->log.find(" bytes spill stores", at)) != std::string::npos; ++at)
    EXPECT_EQ(cubin->log.substr(at - 2, 2), " 0") << cubin->log;
}

}  // namespace
}  // namespace obelisk::runtime::cuda
