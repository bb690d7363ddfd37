#include "runtime/cuda/source.h"

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <sstream>

#include "base/parallel.h"
#include "runtime/cuda/dialect_files.h"
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
  const auto tables = make_tables(program, is_mono(program), device->fast_memory.count);
  int least = tables.ok() ? 2 : 0;
  if (tables.ok())
    for (const Launch& launch : tables->launches)
      if (launch.streams) least = std::min(least, launch.ring_pages);
  return least;
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

namespace {

/// A cache entry is the machine code, what the assembler said about it, and a tail that tells them
/// apart.
constexpr char kTail[8] = {'o', 'b', 'k', 'c', 'u', 'b', '1', '\n'};

std::string dialect_text() {
  std::string all;
  for (int k = 0; k < kDialectFileCount; ++k) all += kDialectFiles[k].text;
  return all;
}

/// Which bodies become part of the kernel; the others are called. One that is a kernel of its own
/// does; of a kernel of all those that are no convolution where they are few, else the products
/// that most works run: a call costs half a microsecond, and wgmma wants none. More would only make
/// the kernel long.
std::vector<bool> inlined_bodies(const Program& program) {
  constexpr size_t kMost = 8, kFew = 16;
  std::vector<bool> inlined(program.bodies.size(), !is_mono(program));
  if (!is_mono(program)) return inlined;
  if (program.flows)
    return std::vector<bool>(
        program.bodies.size(),
        true);  // calls would keep registers in memory, which is far while weights flow
  for (size_t k = 0; k < program.bodies.size(); ++k)
    inlined[k] = !program.bodies[k].traits.calls(codegen::kConvTile);
  if (std::count(inlined.begin(), inlined.end(), true) <= static_cast<std::ptrdiff_t>(kFew))
    return inlined;
  inlined.assign(program.bodies.size(), false);
  std::vector<int> works(program.bodies.size()), order;
  for (const WorkRecord& work : program.works) ++works[work.body];
  for (size_t k = 0; k < program.bodies.size(); ++k)
    if (program.bodies[k].traits.calls(codegen::kGemmTile)) order.push_back(static_cast<int>(k));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return works[a] > works[b]; });
  for (size_t k = 0; k < std::min(order.size(), kMost); ++k) inlined[order[k]] = true;
  return inlined;
}

/// The log without times, so that the same program gives the same bytes.
std::string timeless(const std::string& log) {
  std::istringstream lines(log);
  std::string kept;
  for (std::string line; std::getline(lines, line);)
    if (line.find("Compile time") == std::string::npos) kept += line + "\n";
  return kept;
}

/// Whether a function's text is a program's own, and not a hand-written block's.
bool is_generated(const KernelReport& function) { return function.name.starts_with("obk_"); }

/// Errors where the assembler reports what means a broken kernel.
Status judge(const Program& program, const Image& image) {
  const auto broken = [](std::string message, std::string node) {
    return Error{Code::kBuild, "runtime", std::move(message), std::move(node),
                 "this is a defect of Obelisk; please report it with the model"};
  };
  if (const Serialised slow = serialised(image.log); slow.any)
    return broken("the assembler serialised matrix instructions: " + slow.first, "");
  for (const KernelReport& kernel : image.kernels) {
    if (kernel.spill_bytes == 0) continue;
    // A hand-written block holds its sums in registers; in local memory they would be many times
    // slower. A generated body may spill: report_kernels tells it.
    // A called function may save registers of its caller, eight bytes each stored and loaded, once
    // a tile: up to 64 of them.
    constexpr int64_t kSaved = 512;
    if (!is_generated(kernel) && kernel.spill_bytes > kSaved)
      return broken(fmt::format("{} spills {} bytes of registers", kernel.name, kernel.spill_bytes),
                    program.name);
    LOG(kInfo, "runtime", "{} spills {} bytes of registers", kernel.name, kernel.spill_bytes);
  }
  return ok_status();
}

/// Whether most of what a program does is to bring weights for few rows, as of one token, from far
/// memory: kernels/cuda/ring.cuh.
bool streams_for_few_rows(const Program& program) {
  constexpr int64_t kFew = 8, kMuch = int64_t{64} << 20;  // more than stays near from run to run
  int64_t few = 0, all = 0;
  for (const auto& list : program.lists)
    for (const ObkTask& task : list) {
      all += task.weight_bytes;
      if (task.r1 - task.r0 <= kFew) few += task.weight_bytes;
    }
  return few >= kMuch && 2 * few >= all;
}

}  // namespace

std::string kernel_name(int body) {
  return body < 0 ? "obk_program" : fmt::format("obk_kernel_{}", body);
}

std::vector<std::string> device_defines(const Program& program, const LoadOptions& options) {
  std::vector<std::string> defines;
  if (is_mono(program)) defines.push_back("OBK_MONO=1");
  if (options.watchdog) defines.push_back(fmt::format("OBK_WATCHDOG={}LL", watchdog_clocks()));
  if (const kernels::TileLibrary* tiles = tiles_of(program.target); tiles && tiles->gemm.panel != 0)
    defines.push_back(fmt::format("OBK_GEMM_PANEL={}", tiles->gemm.panel));
  const bool flows = program.flows && is_mono(program);
  if (flows) defines.push_back("OBK_FLOW=1");
  if (const int pages = ring_pages(program)) {
    defines.push_back(fmt::format("OBK_RING={}", pages));
    if (!flows && streams_for_few_rows(program)) defines.push_back("OBK_FEW_ROWS=1");
  }
  return defines;
}

int part_count(const Program& program) {
  constexpr size_t kBodies = 3, kMost = 16;  // of a part; parts
  if (is_mono(program)) return 1;
  return static_cast<int>(
      std::clamp((program.bodies.size() + kBodies - 1) / kBodies, size_t{1}, kMost));
}
int part_of(const Program& program, int body) { return body < 0 ? 0 : body % part_count(program); }

Result<std::string> device_source(const Program& program, const std::set<int>& narrow, int part) {
  TRY_STATUS(has_device_code(program));
  const bool mono = is_mono(program);
  std::string text = "#include \"program.cuh\"\n";
  // In one kernel a body without tasks would only be in the way of others' instructions.
  std::vector<bool> runs(program.bodies.size(), !program.flows);
  for (const auto& list : program.lists)
    for (const ObkTask& task : list)
      if (const int body = program.works[task.work].body; body >= 0)
        runs[static_cast<size_t>(body)] = true;
  const auto is_here = [&](size_t body) {
    return runs[body] && (part < 0 || part_of(program, static_cast<int>(body)) == part);
  };
  const auto any = [&](const std::function<bool(const BodyTraits&)>& is_one) {
    for (size_t k = 0; k < program.bodies.size(); ++k)
      if (is_here(k) && is_one(program.bodies[k].traits)) return true;
    return false;
  };
  if (any([](const BodyTraits& body) { return body.calls(codegen::kAttentionTile); }))
    text += "#include \"attention.cuh\"\n";
  if (any([](const BodyTraits& body) {
        return body.calls(codegen::kConvTile | codegen::kDepthwiseTile);
      }))
    text += "#include \"conv.cuh\"\n";
  const bool products =
      any([](const BodyTraits& body) { return body.form == Form::kPipelinedGemm; });
  if (products || any([](const BodyTraits& body) {
        return body.form == Form::kGrid || body.waits == Wait::kKernelBefore;
      }))
    text += "#include \"dealt.cuh\"\n";
  if (products) text += "#include \"product.cuh\"\n";
  std::map<int, ProductNumbers> numbers;  // by body
  if (products) {
    TRY(const machine::Machine device, machine::gpu(program.target, 0));
    TRY(const Tables tables, make_tables(program, mono, device.fast_memory.count));
    for (const Launch& launch : tables.launches)
      if (launch.product) numbers.emplace(launch.body, launch.numbers);
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
      text +=
          fmt::format("\n{}#undef OBK_PRODUCT_NUMBERS\n#define OBK_PRODUCT_NUMBERS ObkProduct{}\n",
                      text_of(at->second, fmt::format("ObkProduct{}", k)), k);
    const std::string_view widest = "\n#undef OBK_WIDE_TILES\n#define OBK_WIDE_TILES ";
    if (plain) text += fmt::format("{}0\n", widest);
    text += fmt::format("\n/* {} */\n#define obk_body obk_body_{}\n{}#undef obk_body\n",
                        program.bodies[k].label, k, program.bodies[k].text);
    if (plain) text += fmt::format("{}OBK_INLINED\n", widest);
    const bool waits_itself = program.flows || traits.waits == Wait::kWaveBefore;
    cases += fmt::format("    case {0}: {1}return obk_body_{0}(t, p, x, w);\n", k,
                         waits_itself ? "" : "obk::begin_wave(); ");
    const std::string named = fmt::format("{}, obk_body_{}", kernel_name(static_cast<int>(k)), k);
    kernels +=
        at != numbers.end()
            ? fmt::format("OBK_PRODUCT_{}KERNEL({}, ObkProduct{})\n",
                          at->second.parts * at->second.share > 1 ? "CLUSTER_" : "", named, k)
        : traits.form == Form::kCluster
            ? fmt::format("OBK_TEAM_KERNEL({}, {})\n", named, traits.cluster)
        : traits.form == Form::kGrid
            ? fmt::format("OBK_DEALT_KERNEL({}, {}, {})\n", named, traits.ctas_per_sm,
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

std::vector<KernelReport> read_assembler_log(const std::string& log) {
  std::vector<KernelReport> kernels;
  const auto named = [&](const std::string& mangled) -> KernelReport& {
    // A C++ function's name stands in its mangled one: _ZN...10obk_body_3...
    std::string name = mangled;
    if (const size_t at = mangled.find("obk_body_"); at != std::string::npos) {
      size_t end = at + 9;
      while (end < mangled.size() && isdigit(static_cast<unsigned char>(mangled[end]))) ++end;
      name = mangled.substr(at, end - at);
    } else if (char* plain = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, nullptr)) {
      name = plain;  // (anonymous namespace)::obk::gemm16<false>(ObkLanes*, ObkGemm const&)
      free(plain);
      if (const size_t from = name.find("obk::"); from != std::string::npos)
        name = name.substr(from, name.find('(', from) - from);
    }
    for (KernelReport& known : kernels)
      if (known.name == name) return known;
    kernels.push_back({.name = name});
    return kernels.back();
  };
  const auto after = [](const std::string& line, const std::string& word) {
    const size_t at = line.find(word);
    return at == std::string::npos ? std::string() : line.substr(at + word.size());
  };
  /// The number before `word`.
  const auto number = [](const std::string& line, const std::string& word) -> int64_t {
    size_t at = line.find(word);
    if (at == std::string::npos) return 0;
    while (at > 0 && line[at - 1] == ' ') --at;
    size_t begin = at;
    while (begin > 0 && isdigit(static_cast<unsigned char>(line[begin - 1]))) --begin;
    return atoll(line.substr(begin, at - begin).c_str());
  };
  std::istringstream lines(log);
  std::string entry, function;
  for (std::string line; std::getline(lines, line);) {
    if (std::string name = after(line, "Compiling entry function '"); !name.empty())
      entry = function = name.substr(0, name.find('\''));
    else if (std::string of = after(line, "Function properties for "); !of.empty())
      function = of;
    else if (line.find("bytes spill stores") != std::string::npos && !function.empty())
      named(function).spill_bytes =
          number(line, "bytes spill stores") + number(line, "bytes spill loads");
    else if (line.find("Used ") != std::string::npos && !entry.empty()) {
      KernelReport& kernel = named(entry);
      kernel.registers = static_cast<int>(number(line, "registers"));
      kernel.smem_bytes = number(line, "bytes smem");
    }
  }
  return kernels;
}

namespace {

/// "obk_kernel_3" and "obk_body_3" are of body 3; nothing of others.
const codegen::BodyText* body_of(const Program& program, const std::string& function) {
  for (const std::string_view kind : {"obk_kernel_", "obk_body_"}) {
    if (!function.starts_with(kind)) continue;
    const auto body = static_cast<size_t>(atoi(function.c_str() + kind.size()));
    return body < program.bodies.size() ? &program.bodies[body] : nullptr;
  }
  return nullptr;
}

}  // namespace

void report_kernels(const Program& program, const std::vector<Image>& images,
                    const std::vector<Launch>& launches, DeviceReport& report) {
  const auto named = [&](const KernelReport& function) {
    const codegen::BodyText* body = body_of(program, function.name);
    return function.name + (body ? fmt::format(" ('{}')", body->label) : "");
  };
  std::vector<KernelReport> called;  // generated functions that spill
  for (const Image& image : images) {
    report.cubin_bytes += static_cast<int64_t>(image.bytes.size());
    for (KernelReport kernel : image.kernels) {
      int64_t dynamic = 0;
      for (const Launch& launch : launches)
        if (kernel_name(launch.body) == kernel.name)
          dynamic = std::max<int64_t>(dynamic, launch.shared), ++kernel.launches;
      kernel.smem_bytes += dynamic;
      if (is_generated(kernel) && kernel.spill_bytes > 0) {
        if (kernel.registers > 0)
          report.warnings.push_back(fmt::format("{} spills registers: {} bytes stored and loaded",
                                                named(kernel), kernel.spill_bytes));
        else
          called.push_back(kernel);  // the assembler tells registers of kernels alone
      }
      report.kernels.push_back(std::move(kernel));
    }
  }
  if (called.empty()) return;
  const auto most = std::ranges::max_element(called, {}, &KernelReport::spill_bytes);
  int64_t all = 0;
  for (const KernelReport& each : called) all += each.spill_bytes;
  report.warnings.push_back(fmt::format(
      "{} called function{} spill{} registers: {} bytes stored and loaded, most by {}, {}",
      called.size(), called.size() == 1 ? "" : "s", called.size() == 1 ? "s" : "", all,
      named(*most), most->spill_bytes));
}

Serialised serialised(const std::string& log) {
  Serialised found;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    // An injected arrive (C7519) orders registers before products and waits for none; all else of
    // C75xx makes products wait.
    if (line.find("(C75") == std::string::npos ||
        line.find("warpgroup.arrive is injected") != std::string::npos)
      continue;
    if (!found.any) found.first = line;
    found.any = true;
    bool named = false;
    for (const std::string_view kind : {"obk_kernel_", "obk_body_"}) {
      const size_t at = line.find(kind);
      if (at == std::string::npos || !isdigit(static_cast<unsigned char>(line[at + kind.size()])))
        continue;
      found.bodies.insert(atoi(line.c_str() + at + kind.size())), named = true;
      break;
    }
    found.known = found.known && named;
  }
  return found;
}

namespace {

/// Machine code in which nothing is serialised: where wgmma would be, bodies by name, or else all
/// of the program, take mma.sync, which gives the same bits.
Result<Cubin> compile_quickly(const Program& program, const std::string& text,
                              const std::string& architecture,
                              const std::vector<std::string>& defines, int part) {
  TRY(Cubin cubin, compile_cubin(text, architecture, defines));
  Serialised slow = serialised(cubin.log);
  if (!slow.any) return cubin;
  if (slow.known) {
    std::string names;
    for (const int body : slow.bodies) {
      if (static_cast<size_t>(body) >= program.bodies.size()) continue;
      names += (names.empty() ? "" : ", ") + program.bodies[static_cast<size_t>(body)].label;
    }
    LOG(kWarning, "runtime",
        "the assembler would serialise wgmma in {} of {} bodies ({}); their tiles take mma.sync, "
        "which may be slower",
        slow.bodies.size(), program.bodies.size(), names);
    TRY(const std::string narrow, device_source(program, slow.bodies, part));
    TRY(cubin, compile_cubin(narrow, architecture, defines));
    slow = serialised(cubin.log);
    if (!slow.any) return cubin;
  }
  LOG(kWarning, "runtime",
      "the assembler would serialise wgmma; all tiles of '{}' take mma.sync, which may be slower",
      program.name);
  std::vector<std::string> plain = defines;
  plain.push_back("OBK_NO_WIDE_TILES=1");
  return compile_cubin(text, architecture, plain);
}

Result<Image> build_part(const Program& program, const std::string& architecture,
                         const std::vector<std::string>& defines, const PrivateFolder* cache,
                         int part) {
  TRY(const std::string text, device_source(program, {}, part));
  std::string identity = architecture + " " + nvrtc_version();
  for (const std::string& define : defines) identity += " " + define;
  for (const std::string& option : wished_options()) identity += " " + option;
  const std::string kept =
      cache ? to_string(hash_text(identity + dialect_text() + text)) + ".cubin" : "";
  Result<Image> image = Error{};
  if (auto bytes = cache ? cache->get(kept) : std::nullopt) image = from_entry(*bytes);
  if (image.ok()) {
    image->cached = true;
  } else {
    TRY(Cubin cubin, compile_quickly(program, text, architecture, defines, part));
    image = Image{.bytes = std::move(cubin.bytes), .log = timeless(cubin.log)};
    image->kernels = read_assembler_log(image->log);
    if (cache)
      if (Status published = cache->put(kept, to_entry(*image)); !published.ok())
        LOG(kWarning, "runtime", "not cached: {}", published.error().text());
  }
  TRY_STATUS(judge(program, *image));
  return image;
}

}  // namespace

Result<std::vector<Image>> build_images(const Program& program, const std::string& architecture,
                                        const LoadOptions& options) {
  const std::vector<std::string> defines = device_defines(program, options);
  const auto cache = open_cache(options.cache_dir);
  std::vector<Result<Image>> built(static_cast<size_t>(part_count(program)), Error{});
  (void)find_nvrtc();  // loaded once, before there are threads
  for_each_on_all_cores(built.size(), [&](size_t part) {
    built[part] = build_part(program, architecture, defines, cache.get(), static_cast<int>(part));
  });
  std::vector<Image> images;
  for (Result<Image>& each : built) {
    if (!each.ok()) return each.error();
    images.push_back(std::move(*each));
  }
  return images;
}

std::string to_entry(const Image& image) {
  std::string bytes = image.bytes + image.log;
  const uint64_t sizes[2] = {image.bytes.size(), image.log.size()};
  bytes.append(reinterpret_cast<const char*>(sizes), sizeof sizes);
  return bytes.append(kTail, sizeof kTail);
}

Result<Image> from_entry(const std::string& bytes) {
  uint64_t sizes[2];
  constexpr size_t kEnd = sizeof sizes + sizeof kTail;
  const Error damaged{Code::kBuild, "runtime", "the device code is damaged", "",
                      "compile it again from its model"};
  if (bytes.size() < kEnd ||
      memcmp(bytes.data() + bytes.size() - sizeof kTail, kTail, sizeof kTail))
    return damaged;
  memcpy(sizes, bytes.data() + bytes.size() - kEnd, sizeof sizes);
  if (sizes[0] > bytes.size() || sizes[1] > bytes.size() ||
      sizes[0] + sizes[1] + kEnd != bytes.size())
    return damaged;
  Image image{.bytes = bytes.substr(0, sizes[0]), .log = bytes.substr(sizes[0], sizes[1])};
  image.kernels = read_assembler_log(image.log);
  return image;
}

}  // namespace obelisk::runtime::cuda
