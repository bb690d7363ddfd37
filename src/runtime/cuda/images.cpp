#include "runtime/cuda/images.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/parallel.h"
#include "runtime/cuda/assembler_log.h"
#include "runtime/cuda/dialect_files.h"

namespace obelisk::runtime::cuda {

namespace {

/// A cache entry is the machine code, what the assembler said about it, and a tail that tells them
/// apart and says what the code's parameters look like.
constexpr char kTail[8] = {'o', 'b', 'k', 'c', 'u', 'b', '2', '\n'};
struct Footer {
  uint64_t code = 0, log = 0;  // bytes
  char parameters[32] = {};    // a hash of the headers that host and device share
};

Footer footer_of(uint64_t code, uint64_t log) {
  static const std::string hash = [] {
    std::string shared;
    for (int k = 0; k < kDialectFileCount; ++k)
      if (const std::string_view name = kDialectFiles[k].name;
          name.ends_with("layout.h") || name.ends_with("abi.h"))
        shared += kDialectFiles[k].text;
    return to_string(hash_text(shared));
  }();
  Footer footer{code, log};
  hash.copy(footer.parameters, sizeof footer.parameters);
  return footer;
}

std::string dialect_text() {
  std::string all;
  for (int k = 0; k < kDialectFileCount; ++k) all += kDialectFiles[k].text;
  return all;
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

/// Whether a hand-written function's operands may lie in local memory, many times slower than in
/// registers. A called one may save registers of its caller, eight bytes each stored and loaded,
/// once a tile: up to 64 of them say nothing.
bool is_spilled(const KernelReport& function) {
  constexpr int64_t kSaved = 512;
  return !is_generated(function) && function.spill_bytes > kSaved;
}

/// Errors where the assembler reports what means a broken kernel.
Status judge(const Image& image) {
  if (const Serialised slow = serialised(image.log); slow.any)
    return Error{Code::kBuild, "runtime",
                 "the assembler serialised matrix instructions: " + slow.first, "",
                 "this is a defect of Obelisk; please report it with the model"};
  for (const KernelReport& kernel : image.kernels)
    if (kernel.spill_bytes > 0)
      LOG(kInfo, "runtime", "{} spills {} bytes of registers", kernel.name, kernel.spill_bytes);
  return ok_status();
}

/// "obk_kernel_3" and "obk_body_3" are of body 3; nothing of others.
const codegen::BodyText* body_of(const Program& program, const std::string& function) {
  for (const std::string_view kind : {"obk_kernel_", "obk_body_"}) {
    if (!function.starts_with(kind)) continue;
    const auto body = static_cast<size_t>(atoi(function.c_str() + kind.size()));
    return body < program.bodies.size() ? &program.bodies[body] : nullptr;
  }
  return nullptr;
}

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
  plain.push_back("OBK_NO_WGMMA_TILES=1");
  return compile_cubin(text, architecture, plain);
}

/// The same where called functions have registers for what they are written for. In one kernel of
/// many bodies callers may leave too few: then fewer operands are on their way at once.
Result<Cubin> compile_unspilled(const Program& program, const std::string& text,
                                const std::string& architecture,
                                const std::vector<std::string>& defines, int part) {
  TRY(Cubin cubin, compile_quickly(program, text, architecture, defines, part));
  const std::vector<KernelReport> kernels = read_assembler_log(timeless(cubin.log));
  const auto kernel = std::ranges::find_if(kernels, is_spilled);
  if (kernel == kernels.end()) return cubin;
  LOG(kInfo, "runtime", "{} would spill {} bytes of registers; fewer operands come at once",
      kernel->name, kernel->spill_bytes);
  std::vector<std::string> few = defines;
  few.push_back("OBK_FEW_REGISTERS=1");
  return compile_quickly(program, text, architecture, few, part);
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
    TRY(Cubin cubin, compile_unspilled(program, text, architecture, defines, part));
    image = Image{.bytes = std::move(cubin.bytes), .log = timeless(cubin.log)};
    image->kernels = read_assembler_log(image->log);
    if (cache)
      if (Status published = cache->put(kept, to_entry(*image)); !published.ok())
        LOG(kWarning, "runtime", "not cached: {}", published.error().text());
  }
  TRY_STATUS(judge(*image));
  return image;
}

}  // namespace

void report_kernels(const Program& program, const std::vector<Image>& images,
                    const std::vector<Launch>& launches, DeviceReport& report) {
  const auto named = [&](const KernelReport& function) {
    const codegen::BodyText* body = body_of(program, function.name);
    return function.name + (body ? fmt::format(" ('{}')", body->label) : "");
  };
  std::vector<KernelReport> called;  // functions that spill
  for (const Image& image : images) {
    report.cubin_bytes += static_cast<int64_t>(image.bytes.size());
    for (KernelReport kernel : image.kernels) {
      int64_t dynamic = 0;
      for (const Launch& launch : launches)
        if (kernel_name(launch.body) == kernel.name)
          dynamic = std::max<int64_t>(dynamic, launch.shared), ++kernel.launches;
      kernel.smem_bytes += dynamic;
      if (is_spilled(kernel) || (is_generated(kernel) && kernel.spill_bytes > 0)) {
        if (kernel.registers > 0)
          report.warnings.push_back(fmt::format("{} spills registers: {} bytes stored and loaded",
                                                named(kernel), kernel.spill_bytes));
        else
          called.push_back(kernel);  // the assembler reports registers of kernels alone
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

Result<std::vector<Image>> build_images(const Program& program, const std::string& architecture,
                                        const LoadOptions& options) {
  const std::vector<std::string> defines = device_defines(program, options);
  const auto cache = open_cache(options.cache_dir);
  const bool whole = options.jobs == 1;
  std::vector<Result<Image>> built(static_cast<size_t>(whole ? 1 : part_count(program)), Error{});
  (void)find_nvrtc();  // loaded once, before there are threads
  for_each_on_all_cores(built.size(), [&](size_t part) {
    built[part] = build_part(program, architecture, defines, cache.get(),
                             whole ? -1 : static_cast<int>(part));
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
  const Footer footer = footer_of(image.bytes.size(), image.log.size());
  bytes.append(reinterpret_cast<const char*>(&footer), sizeof footer);
  return bytes.append(kTail, sizeof kTail);
}

Result<Image> from_entry(const std::string& bytes) {
  Footer footer;
  constexpr size_t kEnd = sizeof footer + sizeof kTail;
  const Error damaged{Code::kBuild, "runtime", "the device code is damaged", "",
                      "compile it again from its model"};
  if (bytes.size() < kEnd ||
      memcmp(bytes.data() + bytes.size() - sizeof kTail, kTail, sizeof kTail))
    return damaged;
  memcpy(&footer, bytes.data() + bytes.size() - kEnd, sizeof footer);
  if (footer.code > bytes.size() || footer.log > bytes.size() ||
      footer.code + footer.log + kEnd != bytes.size())
    return damaged;
  if (memcmp(footer.parameters, footer_of(0, 0).parameters, sizeof footer.parameters) != 0)
    return Error{Code::kBuild, "runtime", "the device code is of another version of Obelisk", "",
                 "compile it again from its model"};
  Image image{.bytes = bytes.substr(0, footer.code), .log = bytes.substr(footer.code, footer.log)};
  image.kernels = read_assembler_log(image.log);
  return image;
}

}  // namespace obelisk::runtime::cuda
