#include "runtime/cuda/source.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "machine/machine.h"
#include "runtime/packing.h"

namespace obelisk::runtime::cuda {

namespace {

using codegen::BodyTraits;
using Form = BodyTraits::Form;
using Wait = BodyTraits::Wait;

/// How long the watchdog waits: about two seconds, or $OBELISK_WATCHDOG_CLOCKS.
std::string watchdog_clocks() {
  const char* wished = getenv("OBELISK_WATCHDOG_CLOCKS");
  const std::string_view text = wished ? wished : "";
  if (!text.empty() && text.size() < 19 &&
      text.find_first_not_of("0123456789") == std::string_view::npos)
    return wished;
  if (!text.empty())
    LOG(kWarning, "runtime",
        "OBELISK_WATCHDOG_CLOCKS is '{}', which is no number of clocks; the watchdog waits two "
        "seconds",
        text);
  return "4000000000";
}

bool is_mono(const Program& program) { return program.granularity == machine::Granularity::kMono; }

/// Pages that every kernel that streams weights has for them, 0 to 2: with one tiles need no other
/// way, with two they may stream both operands.
int ring_pages(const Program& program) {
  const auto device = machine::gpu(program.target, 0);
  if (!device.ok()) return 0;
  const auto tables = make_tables(program, is_mono(program), device->scratchpad.count);
  int least = tables.ok() ? 2 : 0;
  if (tables.ok())
    for (const Launch& launch : tables->launches)
      if (launch.streams) least = std::min(least, launch.ring_pages);
  return least;
}

/// Which bodies become part of the kernel; the others are called. One that is a kernel of its own
/// does; of a kernel of all those that are no convolution where they are few, else the products
/// that most works run: a call costs half a microsecond, and wgmma wants none. More would only make
/// the kernel long.
std::vector<bool> inlined_bodies(const Program& program) {
  using machine::thresholds::kFewInlined, machine::thresholds::kMostInlined;
  std::vector<bool> inlined(program.bodies.size(), !is_mono(program));
  if (!is_mono(program)) return inlined;
  if (program.dataflow)
    return std::vector<bool>(
        program.bodies.size(),
        true);  // calls would keep registers in memory, which is far while weights flow
  for (size_t k = 0; k < program.bodies.size(); ++k)
    inlined[k] = !program.bodies[k].traits.calls(codegen::kConvTile);
  if (std::count(inlined.begin(), inlined.end(), true) <= static_cast<std::ptrdiff_t>(kFewInlined))
    return inlined;
  inlined.assign(program.bodies.size(), false);
  std::vector<int> works(program.bodies.size()), order;
  for (const WorkRecord& work : program.works) ++works[work.body];
  for (size_t k = 0; k < program.bodies.size(); ++k)
    if (program.bodies[k].traits.calls(codegen::kGemmTile)) order.push_back(static_cast<int>(k));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return works[a] > works[b]; });
  for (size_t k = 0; k < std::min(order.size(), kMostInlined); ++k) inlined[order[k]] = true;
  return inlined;
}

/// Whether most of what a program does is to load weights for few rows, as of one token, from
/// global memory: kernels/cuda/exec/ring.cuh.
bool streams_for_few_rows(const Program& program) {
  using machine::thresholds::kFewStreamedRows, machine::thresholds::kManyStreamed;
  int64_t few = 0, all = 0;
  for (const auto& list : program.lists)
    for (const ObkTask& task : list) {
      all += task.weight_bytes;
      if (task.r1 - task.r0 <= kFewStreamedRows) few += task.weight_bytes;
    }
  return few >= kManyStreamed && 2 * few >= all;
}

}  // namespace

Status check_pages(const Program& program, const std::vector<Launch>& launches) {
  const int wanted = ring_pages(program);
  for (const Launch& launch : launches)
    if (launch.streams && launch.ring_pages < wanted)
      return Error{
          Code::kDevice, "runtime",
          fmt::format("the code for {} wants {} pages of weights in shared memory, this GPU has "
                      "room for {}",
                      program.target, wanted, launch.ring_pages),
          launch.body >= 0 ? program.bodies[static_cast<size_t>(launch.body)].label : program.name,
          "run it on a GPU with more shared memory a multiprocessor, or compile with --precision "
          "fp32"};
  return ok_status();
}

std::string kernel_name(int body) {
  return body < 0 ? "obk_program" : fmt::format("obk_kernel_{}", body);
}

std::vector<std::string> device_defines(const Program& program, const LoadOptions& options) {
  std::vector<std::string> defines;
  if (is_mono(program)) defines.push_back("OBK_MONO=1");
  if (shares_gpu(program)) defines.push_back("OBK_SHARES_GPU=1");
  if (options.instances) defines.push_back("OBK_INSTANCES=1");
  if (options.watchdog) defines.push_back(fmt::format("OBK_WATCHDOG={}LL", watchdog_clocks()));
  if (const kernels::TileLibrary* tiles = tiles_of(program.target);
      tiles && tiles->gemm.smem_a != 0)
    defines.push_back(fmt::format("OBK_GEMM_SMEM_A={}", tiles->gemm.smem_a));
  const bool dataflow = program.dataflow && is_mono(program);
  if (dataflow) defines.push_back("OBK_DATAFLOW=1");
  if (const int pages = ring_pages(program)) {
    defines.push_back(fmt::format("OBK_RING={}", pages));
    if (!dataflow && streams_for_few_rows(program)) defines.push_back("OBK_FEW_ROWS=1");
  }
  return defines;
}

int part_count(const Program& program) {
  using machine::thresholds::kBodiesOfPart, machine::thresholds::kMostParts;
  if (is_mono(program)) return 1;
  return static_cast<int>(std::clamp((program.bodies.size() + kBodiesOfPart - 1) / kBodiesOfPart,
                                     size_t{1}, kMostParts));
}
int part_of(int body, int parts) { return body < 0 ? 0 : body % parts; }

Result<std::string> device_source(const Program& program, const std::set<int>& narrow, int part) {
  TRY_STATUS(has_device_code(program));
  const bool mono = is_mono(program);
  std::string text = "#include \"exec/program.cuh\"\n";
  // In one kernel a body without tasks would only be in the way of others' instructions.
  std::vector<bool> runs(program.bodies.size(), !program.dataflow);
  for (const auto& list : program.lists)
    for (const ObkTask& task : list)
      if (const int body = program.works[task.work].body; body >= 0)
        runs[static_cast<size_t>(body)] = true;
  const auto is_here = [&](size_t body) {
    return runs[body] && (part < 0 || part_of(static_cast<int>(body), part_count(program)) == part);
  };
  const auto any = [&](const std::function<bool(const BodyTraits&)>& is_one) {
    for (size_t k = 0; k < program.bodies.size(); ++k)
      if (is_here(k) && is_one(program.bodies[k].traits)) return true;
    return false;
  };
  if (any([](const BodyTraits& body) { return body.calls(codegen::kAttentionTile); }))
    text += "#include \"attention/attention.cuh\"\n";
  if (any([](const BodyTraits& body) {
        return body.calls(codegen::kConvTile | codegen::kDepthwiseTile);
      }))
    text += "#include \"conv/conv.cuh\"\n";
  const bool products =
      any([](const BodyTraits& body) { return body.form == Form::kPipelinedGemm; });
  if (products || any([](const BodyTraits& body) {
        return body.form == Form::kGrid || body.waits == Wait::kKernelBefore;
      }))
    text += "#include \"exec/grid.cuh\"\n";
  if (products) text += "#include \"gemm/pipelined_gemm.cuh\"\n";
  if (any([](const BodyTraits& body) { return body.gemm && body.gemm->size == 4; }))
    text += "#include \"gemm/pipelined_gemm_f32.cuh\"\n#include \"gemm/pipelined_gemm_tf32.cuh\"\n";
  std::map<int, PipelinedGemmNumbers> numbers;  // by body
  if (products) {
    TRY(const machine::Machine device, machine::gpu(program.target, 0));
    TRY(const Tables tables, make_tables(program, mono, device.scratchpad.count));
    for (const Launch& launch : tables.launches)
      if (launch.pipelined_gemm) numbers.emplace(launch.body, launch.numbers);
    for (size_t k = 0; k < program.bodies.size();
         ++k)  // without tasks it has none, and nobody launches it
      if (program.bodies[k].traits.form == Form::kPipelinedGemm &&
          numbers.count(static_cast<int>(k)) == 0)
        runs[k] = false;
  }
  std::string cases, kernels;
  const std::vector<bool> inlined = inlined_bodies(program);
  for (size_t k = 0; k < program.bodies.size(); ++k) {
    if (!is_here(k)) continue;
    const BodyTraits& traits = program.bodies[k].traits;
    CHECK(mono || traits.waits != Wait::kWaveBefore, "a kernel of its own waits for a wave: {}",
          program.bodies[k].label);
    if (mono && (k == 0 || inlined[k] != inlined[k - 1]))
      text += fmt::format("\n#undef OBK_INLINED\n#define OBK_INLINED {}\n", inlined[k] ? 1 : 0);
    const bool plain = narrow.count(static_cast<int>(k)) > 0;
    const auto at = numbers.find(static_cast<int>(k));
    if (at != numbers.end())
      text += fmt::format(
          "\n{}#undef OBK_PIPELINED_GEMM_NUMBERS\n#define OBK_PIPELINED_GEMM_NUMBERS "
          "ObkPipelinedGemm{}\n",
          text_of(at->second, fmt::format("ObkPipelinedGemm{}", k)), k);
    const std::string_view widest = "\n#undef OBK_WGMMA_TILES\n#define OBK_WGMMA_TILES ";
    if (plain) text += fmt::format("{}0\n", widest);
    text += fmt::format("\n/* {} */\n#define obk_body obk_body_{}\n{}#undef obk_body\n",
                        program.bodies[k].label, k, program.bodies[k].text);
    if (plain) text += fmt::format("{}OBK_INLINED\n", widest);
    const bool waits_itself = program.dataflow || traits.waits == Wait::kWaveBefore;
    cases += fmt::format("    case {0}: {1}return obk_body_{0}(t, p, x, w);\n", k,
                         waits_itself ? "" : "obk::begin_wave(); ");
    const std::string named = fmt::format("{}, obk_body_{}", kernel_name(static_cast<int>(k)), k);
    kernels +=
        at != numbers.end()
            ? fmt::format("OBK_PIPELINED_GEMM_{}KERNEL({}, ObkPipelinedGemm{})\n",
                          at->second.split_k * at->second.share > 1 ? "CLUSTER_" : "", named, k)
        : traits.form == Form::kCluster
            ? fmt::format("OBK_CLUSTER_KERNEL({}, {}, {})\n", named, traits.cluster,
                          traits.waits == Wait::kKernelBefore)
        : traits.form == Form::kGrid
            ? fmt::format("OBK_GRID_KERNEL({}, {}, {})\n", named, traits.ctas_per_sm,
                          traits.waits == Wait::kKernelBefore)
            : fmt::format("OBK_KERNEL({})\n", named);
  }
  if (!mono) return text + "\n" + kernels;
  return text +
         "\nstatic __device__ __forceinline__ void obk_dispatch(int32_t body, const ObkTask* t, "
         "const int64_t* p, "
         "void* const* x, ObkLanes* w) {\n  switch (body) {\n" +
         cases + "  }\n}\n";
}

}  // namespace obelisk::runtime::cuda
