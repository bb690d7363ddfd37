// Every form of signal that the one kernel of a program has (kernels/cuda/exec/program.cuh,
// dataflow.cuh), in that kernel itself: its tables and bodies are the test's. Each task checks
// every word that others gave it and every word of the weights that stream meanwhile, some CTAs are
// late by turns, run follows run without a reset, memory is poisoned before the first. Skipped
// where no GPU is. OBELISK_GPU_PHASES sets how many exchanges a form has.
#include <algorithm>
#include <cstdlib>

#include "device.h"
#include "runtime/cuda/tables.h"

namespace obelisk::runtime::cuda {
namespace {

constexpr const char* kText = R"cu(
#include "exec/program.cuh"

/* The word at place k of what step `step` of run `run` gives. */
static __device__ __forceinline__ uint32_t word_of(uint32_t run, uint32_t step, uint32_t k) {
  uint32_t x = run * 2654435761u + step * 2246822519u + k * 747796405u;
  return x ^ x >> 15;
}
static __device__ __forceinline__ int number(const void* x) { return (int)(int64_t)x; }
/* One CTA in 32 is up to a microsecond late. */
static __device__ __forceinline__ void fall_behind(int run, int step, int sm) {
  const uint32_t dice = word_of(run, step, sm + 100000);
  if (dice % 32 != 0) return;
  const int64_t since = obk::clock_cycles();
  while (obk::clock_cycles() - since < (int64_t)(dice / 32 % 2000)) {
  }
}
/* The task's pages, all words of them: how many are not what the host wrote behind `base`. */
static __device__ __forceinline__ unsigned wrong_weights(const ObkTask* t, const void* base) {
  const obk::WeightPages range = obk::pages_of(t);
  constexpr int kChunkWords = obk::WeightPages::kMostGroups * obk::WeightPages::kAtomBytes / 4; /* a page has one chunk */
  uint32_t word = (uint32_t)((range.from - (const char*)base) / 4);
  unsigned bad = 0;
  obk::FixedRing ring;
  ring.look();
  ring.open(range);
  for (int page = 0; page < range.chunks; ++page, word += kChunkWords) {
    const uint32_t at = ring.take();
    for (int k = threadIdx.x; k < kChunkWords; k += 256)
      bad += obk::load_shared_word(at + 4 * k) != (word + k) * 747796405u;
    ring.release();
  }
  __syncthreads(); /* all have looked at the ring's state */
  ring.close();
  __syncthreads();
  return bad;
}

#ifdef OBK_DATAFLOW
/* t->r0: the step. x: the CTA's copy of what the step before gave, where this one gives, the count of wrong words, the first weight, the step
 * that gives one wrong word. p: pairs of words. */
static __device__ __forceinline__ void obk_dispatch(int32_t, const ObkTask* t, const int64_t* p, void* const* x, ObkLanes* w) {
  const int step = (int)t->r0, pairs = (int)p[0], run = (int)w->tag;
  unsigned bad = 0;
  if (threadIdx.x == 0) fall_behind(run, step, w->sm);
  if (step > 0)
    for (int k = threadIdx.x; k < 2 * pairs; k += 256)
      bad += ((const uint32_t*)x[0])[k] != word_of(run, step - 1, k);
  bad += wrong_weights(t, x[3]);
  for (int pair = w->sm + w->sms * (int)threadIdx.x; pair < pairs; pair += w->sms * 256) {
    const uint32_t spoilt = step == number(x[4]) && pair == 1;
    obk::broadcast_two((char*)x[1] + pair * 16, word_of(run, step, 2 * pair) ^ spoilt, word_of(run, step, 2 * pair + 1), w->tag);
  }
  if (bad) atomicAdd((unsigned long long*)x[2], (unsigned long long)bad);
}
#else
static constexpr int kOwn = 1536, kRowWords = 128, kOwnRows = kOwn / kRowWords;
static __device__ __forceinline__ bool idle_in(int sm, int step) {
#ifdef OBK_FEW_ROWS
  return step >= 8 && (sm * 5 + step) % 8 < 3;
#else
  return false;
#endif
}
/* What stands at place k after a step, in the matrix that it wrote: of the last step that wrote there. */
static __device__ __forceinline__ uint32_t standing(int run, int step, int k) {
  while (idle_in(k / kOwn, step)) step -= 2;
  return word_of(run, step, k);
}
/* t->r0: the step. x: the matrix that the step before wrote, the one that this one writes, the count of wrong words, the first weight, the
 * step that writes one wrong word, the run, steps of a run, the first matrix's map. */
static __device__ __forceinline__ void obk_dispatch(int32_t, const ObkTask* t, const int64_t* p, void* const* x, ObkLanes* w) {
  const int step = (int)t->r0, run = number(x[5]), steps = number(x[6]), all = w->sms * kOwnRows;
  const int before = step > 0 ? step - 1 : steps - 1, of = step > 0 ? run : run - 1; /* of the first run's first step nobody */
  uint32_t* const to = (uint32_t*)x[1];
  unsigned bad = 0;
  if (threadIdx.x == 0) fall_behind(run, step, w->sm);
#ifdef STRESS_ROWS
  /* 64 rows by TMA, as a product requests them: by the thread that waits. */
  typedef obk::FixedShape<64, 48, 2 * kRowWords, 2 * kRowWords, 56> Shape;
  const int row = (w->sm * 37 + step * 101) % (all - 63);
  const obk::AsyncRows<true, STRESS_ROWS, Shape> rows(x[7], row, 0, w->scratch);
  static_assert(rows.kAsync, "the rows come by copies");
  rows.load();
  rows.begin();
  const uint32_t turn = rows.turn(), at = (obk::shared_address(w->scratch) + 1023) & ~1023u;
  for (int k = 0; k < rows.kCopies; ++k) rows.wait(k, turn);
  if (of > 0)
    for (int k = threadIdx.x; k < 64 * kRowWords / 4; k += 256) { /* pieces of 16 bytes, swapped by row */
      const int r = k / 32, chunk = k / 8 % 4, piece = k % 8;
      uint32_t seen[4];
      obk::load_shared16(seen, at + chunk * Shape::kBlock + r * 128 + ((piece ^ (r & 7)) << 4));
      for (int e = 0; e < 4; ++e) bad += seen[e] != standing(of, before, (row + r) * kRowWords + chunk * 32 + piece * 4 + e);
    }
  __syncthreads();
  rows.read(turn);
#else
  obk::begin_wave();
  const int first = (int)((w->sm * 4099u + step * 7919u) % (uint32_t)(all * kRowWords / 4)) * 4;
  if (of > 0)
    for (int k = threadIdx.x; k < 2048; k += 256) {
      const int i = first + k * 4, place = i < all * kRowWords ? i : i - all * kRowWords;
      const uint4 seen = *(const uint4*)((const uint32_t*)x[0] + place);
      bad += (seen.x != standing(of, before, place)) + (seen.y != standing(of, before, place + 1)) +
             (seen.z != standing(of, before, place + 2)) + (seen.w != standing(of, before, place + 3));
    }
#endif
  bad += wrong_weights(t, x[3]);
  for (int k = threadIdx.x; k < kOwn; k += 256) {
    const uint32_t spoilt = step == number(x[4]) && k == 0; /* by every CTA that is not idle */
    to[w->sm * kOwn + k] = word_of(run, step, w->sm * kOwn + k) ^ spoilt;
  }
  if (bad) atomicAdd((unsigned long long*)x[2], (unsigned long long)bad);
}
#endif
)cu";

int exchanges() {
  const char* text = getenv("OBELISK_GPU_PHASES");
  return text ? atoi(text) : few() ? 10 : 1000000;
}

constexpr int64_t kWeightWords = int64_t{64} << 20;
constexpr int kOwnWords = 1536;   // that a CTA gives with barriers
constexpr int64_t kPairs = 1280;  // that all give where words flow: five of a thread
constexpr int kNoStep = 1 << 30;
constexpr int kPages = 4;  // of the ring, with barriers

/// What a kernel of a program is launched with, made by hand.
struct Tables {
  std::vector<ObkTask> tasks;
  std::vector<int32_t> first;
  std::vector<uint64_t> blocks;
  DevicePointer weights = 0;
  int64_t chunks = 0, groups = 0;

  /// A work of these parameters and operands, that gathers: as its tasks name it.
  int64_t work(const std::vector<uint64_t>& params, const std::vector<uint64_t>& operands,
               const std::vector<ObkGather>& gathers = {}) {
    const int64_t at = static_cast<int64_t>(blocks.size()) * 8;
    const ObkWork head = {.params = static_cast<int32_t>(params.size()),
                          .operands = static_cast<int32_t>(operands.size()),
                          .groups = 1,
                          .gathers = static_cast<int32_t>(gathers.size())};
    add(head);
    blocks.insert(blocks.end(), params.begin(), params.end()),
        blocks.insert(blocks.end(), operands.begin(), operands.end());
    if (blocks.size() % 2) blocks.push_back(0);
    for (const ObkGather& gather : gathers) add(gather);
    return at << 16 | (static_cast<int64_t>(blocks.size()) - at / 8);
  }
  void task(int sm, int sms, int step, int64_t block) {
    const int64_t bytes = groups * chunks * 1024, places = kWeightWords * 4 / bytes;
    const int64_t place = (int64_t{step} * sms + sm) % places;
    tasks.push_back({.wave = static_cast<uint32_t>(step),
                     .r0 = step,
                     .r1 = step + 1,
                     .weights = static_cast<int64_t>(weights) + place * bytes,
                     .weight_bytes = static_cast<int32_t>(bytes),
                     .weight_group = static_cast<int32_t>(chunks * 1024),
                     .block = block});
  }

 private:
  template <typename T>
  void add(const T& record) {
    uint64_t words[sizeof(T) / 8];
    memcpy(words, &record, sizeof record);
    blocks.insert(blocks.end(), words, words + sizeof(T) / 8);
  }
};

/// A form of the signal: the kernel compiled for it, its memory, and a table of `steps` exchanges
/// that run after run has.
struct Form {
  Device& g;
  int sms = g.gpu.sms, steps = std::clamp(exchanges(), 10, 1000);
  DevicePointer wrong = 0;
  ObkWatch* watch = nullptr;
  ObkProgram record = {};
  int shared = 0, threads = kThreads;
  bool dataflow = false;
  uint64_t runs = 0;  // that there have been

  explicit Form(Device& device, bool idle, bool dataflow) : g(device), dataflow(dataflow) {
    std::vector<uint32_t> host(static_cast<size_t>(kWeightWords));
    for (size_t k = 0; k < host.size(); ++k) host[k] = static_cast<uint32_t>(k) * 747796405u;
    Tables tables;
    tables.weights = g.make(host.size() * 4, 0);
    EXPECT_EQ(g.d->CopyToDevice(tables.weights, host.data(), host.size() * 4), 0);
    tables.chunks = idle ? kPages : 3,
    tables.groups = dataflow ? 16 : 24;  // a page each; more than are requested before the wait
    wrong = g.make(8, 0);
    void* memory = nullptr;
    // Behind it two words for each SM, as in a context: where the SM is, and where it was when the
    // clock ran out.
    const size_t bytes = sizeof(ObkWatch) + 2 * static_cast<size_t>(sms) * sizeof(uint32_t);
    EXPECT_EQ(g.d->MemHostAlloc(&memory, bytes, kHostMapped), 0);
    watch = static_cast<ObkWatch*>(memset(memory, 0, bytes));
    dataflow ? fill_dataflow(tables) : fill_barriers(tables, idle);
    const auto upload = [&](const auto& from) {
      const auto bytes = from.size() * sizeof(from[0]);
      const DevicePointer at = g.make(bytes, 0);
      EXPECT_EQ(g.d->CopyToDevice(at, from.data(), bytes), 0);
      return at;
    };
    record.tasks = upload(tables.tasks), record.first = upload(tables.first),
    record.blocks = upload(tables.blocks);
    record.counter = g.make(128, 0), record.watch = reinterpret_cast<DevicePointer>(watch),
    record.waves = steps;
    record.inline_ports[0] = wrong, record.inline_ports[1] = tables.weights,
    record.inline_ports[2] = kNoStep, record.inline_ports[4] = static_cast<DevicePointer>(steps);
    EXPECT_EQ(g.d->CtxSynchronize(), 0);
  }
  ~Form() { g.d->MemFreeHost(watch); }

  static constexpr uint64_t kWrong = OBK_PORT, kWeights = OBK_PORT | 1, kSpoilt = OBK_PORT | 2,
                            kRun = OBK_PORT | 3, kSteps = OBK_PORT | 4;

  /// Two matrices by turns, a row of 128 words, twelve rows a CTA; behind them the maps by which
  /// rows come.
  void fill_barriers(Tables& tables, bool idle) {
    const int64_t matrix = int64_t{sms} * kOwnWords * 4, rows = sms * 12, map = 2 * matrix;
    record.arena = g.make(static_cast<size_t>(map + 256), 0xee);
    int64_t block[2];
    for (int64_t step = 0; step < 2; ++step) {
      const int64_t from = (1 - step) * matrix, to = step * matrix;
      block[step] =
          tables.work({}, {OBK_ARENA | static_cast<uint64_t>(from),
                           OBK_ARENA | static_cast<uint64_t>(to), kWrong, kWeights, kSpoilt, kRun,
                           kSteps, OBK_ARENA | static_cast<uint64_t>(map + step * 128)});
      alignas(64) char text[128];
      Status made =
          encode_rows(record.arena + static_cast<uint64_t>(from), rows, 256, 1, 64, 2, false, text);
      EXPECT_TRUE(made.ok()) << made.error().text();
      made = copy_in(*g.d, record.arena + static_cast<uint64_t>(map + step * 128), text,
                     sizeof text, "copy a map");
      EXPECT_TRUE(made.ok()) << made.error().text();
    }
    if (steps % 2) ++steps;  // the next run's first step reads the second matrix
    for (int sm = 0; sm < sms; ++sm) {
      tables.first.push_back(static_cast<int32_t>(tables.tasks.size()));
      for (int step = 0; step < steps; ++step)
        if (!(idle && step >= 8 && (sm * 5 + step) % 8 < 3))
          tables.task(sm, sms, step, block[step % 2]);
    }
    tables.first.push_back(static_cast<int32_t>(tables.tasks.size()));
    constexpr int kPageBytes = obk::kRingPageBytes, kRows = 64 * 512 + 1024;
    lay_out(kPages, kPageBytes, kRows, 2, 0);
  }
  /// Every step's value has a place of its own, which a run writes once.
  void fill_dataflow(Tables& tables) {
    threads = obk::kDataflowThreads;
    record.arena = g.make(static_cast<size_t>(steps * kPairs * 16), 0xee);
    std::vector<int64_t> block;
    for (int step = 0; step < steps; ++step) {
      std::vector<ObkGather> gathers;
      if (step > 0)
        gathers.push_back(
            {static_cast<uint32_t>((step - 1) * kPairs), 0, static_cast<int32_t>(kPairs), 0});
      block.push_back(
          tables.work({static_cast<uint64_t>(kPairs)},
                      {OBK_SMEM_COPY, OBK_ARENA | static_cast<uint64_t>(step * kPairs * 16), kWrong,
                       kWeights, kSpoilt},
                      gathers));
      if (step > 0) block.back() |= int64_t{1} << OBK_FRESH_AT;
    }
    for (int sm = 0; sm < sms; ++sm) {
      tables.first.push_back(static_cast<int32_t>(tables.tasks.size()));
      for (int step = 0; step < steps; ++step)
        tables.task(sm, sms, step, block[static_cast<size_t>(step)]);
    }
    tables.first.push_back(static_cast<int32_t>(tables.tasks.size()));
    lay_out(6, obk::kDataflowPageBytes, 1024, obk::kDataflowBlocks, static_cast<int>(kPairs * 8));
  }
  void lay_out(int pages, int page_bytes, int scratch, int blocks, int smem_copies) {
    constexpr int kBlock = 128;
    record.ring_pages = pages, record.scratch_at = (pages * (page_bytes + 16) + 1023) / 1024 * 1024;
    record.block_at = record.scratch_at + scratch, record.block_bytes = kBlock;
    record.smem_copies_at = record.block_at + blocks * kBlock,
    record.soon_at = record.smem_copies_at + smem_copies, record.soon_bytes = 0;
    shared = record.soon_at;
  }

  int start(Handle kernel) {
    record.inline_ports[3] = ++runs;
    void* parameters[] = {&record};
    return g.d->LaunchCooperative(kernel, static_cast<unsigned>(sms), 1, 1,
                                  static_cast<unsigned>(threads), 1, 1,
                                  static_cast<unsigned>(shared), nullptr, parameters);
  }
  std::string ended() const {
    const Status done = check(g.d->CtxSynchronize(), "run");
    if (done.ok()) return "";
    return fmt::format("{}; SM {} waits, of kind {}, before task {}: it wants {}, has {}",
                       done.error().text(), watch->sm, watch->kind, watch->task, watch->want,
                       watch->have);
  }
};

/// Runs of a form until it had its exchanges; then one in which one step gives something else,
/// which must be seen.
void expect_right(const char* name, Form& form) {
  Device& g = form.g;
  const Handle kernel = g.function("obk_program", form.shared);
  Handle begin = nullptr, end = nullptr;
  g.d->EventCreate(&begin, 0), g.d->EventCreate(&end, 0);
  const int runs = std::max(2, (exchanges() + form.steps - 2) / std::max(1, form.steps - 1));
  g.d->EventRecord(begin, nullptr);
  for (int run = 0; run < runs; ++run) ASSERT_EQ(form.start(kernel), 0);
  g.d->EventRecord(end, nullptr);
  ASSERT_EQ(form.ended(), "");
  float millis = 0;
  g.d->EventElapsed(&millis, begin, end);
  const auto count = static_cast<int64_t>(runs) * (form.steps - 1);
  const uint64_t wrong = g.read<uint64_t>(form.wrong), sms = static_cast<uint64_t>(form.sms);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(g.read<uint64_t>(form.record.counter),
            sms * static_cast<uint64_t>(form.dataflow ? runs : count));
  fmt::print(
      "{{\"test\": \"{}\", \"phases\": {}, \"runs\": {}, \"us_a_phase\": {:.3f}, \"wrong_words\": "
      "{}}}\n",
      name, count, runs, millis * 1e3 / static_cast<double>(count), wrong);
  form.record.inline_ports[2] = static_cast<DevicePointer>(form.steps / 2);
  ASSERT_EQ(form.start(kernel), 0);
  ASSERT_EQ(form.ended(), "");
  const uint64_t seen = g.read<uint64_t>(form.wrong);
  if (form.dataflow)
    EXPECT_EQ(seen, sms) << "every CTA gathers the one wrong word";
  else
    EXPECT_GE(seen, sms / 2) << "each CTA reads several others' first words";
  g.d->EventDestroy(begin), g.d->EventDestroy(end);
}

#define OPEN_FORM(device, ...)                                                   \
  if (auto gpu = open_gpu(0); gpu.ok() && gpu->arch != machine::Arch{9, 0, 'a'}) \
    GTEST_SKIP() << "copies and wgmma of " << to_string(gpu->arch);              \
  OPEN(device, kText, "OBK_WATCHDOG=4000000000LL", "OBK_MONO=1", "OBK_RING=2", __VA_ARGS__)

// Release by one warp while another requests two pages, the rest after the wait (go_to, rows.cuh).
TEST(Signals, WordsOfOneKernel) {
  OPEN_FORM(g, "STRESS_PLAIN=1");
  Form form(g, false, false);
  expect_right("one kernel, pages after the signal", form);
}
// The same where the thread that waits requests rows by TMA, behind a proxy fence.
TEST(Signals, RowsByTheCopyEngine) {
  OPEN_FORM(g, "STRESS_ROWS=1");
  Form form(g, false, false);
  expect_right("one kernel, rows by TMA", form);
}
// Few rows: CTAs that have no task in a wave arrive without order, while a warp requests pages in
// step with their coming.
TEST(Signals, IdleWavesOfFewRows) {
  OPEN_FORM(g, "OBK_FEW_ROWS=1");
  Form form(g, true, false);
  expect_right("one kernel of few rows, three CTAs in eight idle", form);
}
// Words that carry their own readiness, gathered by every CTA from all.
TEST(Signals, BroadcastWords) {
  OPEN_FORM(g, "OBK_DATAFLOW=1");
  Form form(g, false, true);
  expect_right("words that flow", form);
}

}  // namespace
}  // namespace obelisk::runtime::cuda
