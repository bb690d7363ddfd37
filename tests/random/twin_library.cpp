#include "twin_library.h"

#include <dlfcn.h>

#include <cstring>
#include <filesystem>

#include "base/process.h"
#include "base/temporary_folder.h"
#include "runtime/cuda/dialect_files.h"
#include "runtime/cuda/source.h"

namespace obelisk::random_graphs {
namespace {

using runtime::BufferKind;
using runtime::Place;
using runtime::Program;
using runtime::WorkRecord;

/// A line of assembly and host code in its place; of a text where it has to be found.
struct Substitute {
  const char *file, *device, *host;
};
constexpr Substitute kSubstitutes[] = {
    {"dialect.cuh", R"(asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));)",
     "bits = narrow_two<false>(low, high);"},
    {"dialect.cuh", R"(asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));)",
     "bits = narrow_two<true>(low, high);"},
    {"dialect.cuh", R"(asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(stays));)",
     "stays = 0;"},
    {"dialect.cuh",
     R"(asm volatile("ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(pack.words[4 * k]), "=r"(pack.words[4 * k + 1]), "=r"(pack.words[4 * k + 2]), "=r"(pack.words[4 * k + 3])
                 : "l"((const char*)(p + i) + 16 * k), "l"(stays));)",
     "load_bytes<16>((const char*)(p + i) + 16 * k + stays, pack.words + 4 * k);"},
    {"dialect.cuh", R"(asm("xor.b32 %0, %0, %1;" : "+r"(pack.words[k]) : "r"(zero));)",
     "pack.words[k] ^= zero;"},
    {"barrier.cuh", R"(asm volatile("griddepcontrol.launch_dependents;" ::: "memory");)", ""},
    {"barrier.cuh", R"(asm volatile("griddepcontrol.wait;" ::: "memory");)", ""},
    {"numbers.h",
     R"(float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r;)",
     "return a != a ? a : b != b ? b : b < a ? b : a;"},
    {"numbers.h",
     R"(float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r;)",
     "return a != a ? a : b != b ? b : a < b ? b : a;"},
    {"attention_fma.cuh",
     R"(asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(f[0]), "=f"(f[1]), "=f"(f[2]), "=f"(f[3])
               : "r"(address)
               : "memory");)",
     "memcpy(f, one_cta::at(address, 16), 16);"},
    {"attention_fma.cuh",
     R"(asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(f[0]), "f"(f[1]),
               "f"(f[2]), "f"(f[3])
               : "memory");)",
     "memcpy(one_cta::at(address, 16), f, 16);"},
    {"conv_patch.cuh",
     R"(asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + r * p.row_bytes + p.lead + i * 2), "h"(value)
                   : "memory");)",
     "memcpy(one_cta::at((uint32_t)(to + r * p.row_bytes + p.lead + i * 2), 2), &value, 2);"},
};

/** Where `device` stands in `text`, whatever the white space between its characters; empty where it
 * does not. */
std::string_view find_statement(std::string_view text, std::string_view device) {
  const auto is_space = [](char c) { return c == ' ' || c == '\n'; };
  for (size_t begin = 0; begin < text.size(); ++begin) {
    size_t at = begin;
    const bool equal = std::all_of(device.begin(), device.end(), [&](char c) {
      if (is_space(c)) return true;
      while (at < text.size() && at > begin && is_space(text[at])) ++at;
      return at < text.size() && text[at++] == c;
    });
    if (equal) return text.substr(begin, at - begin);
  }
  return {};
}

std::string text_of_file(const std::string& path) {
  const auto text = read_file(path);
  return text.ok() ? *text : "";
}

}  // namespace

TwinLibrary::~TwinLibrary() {
  for (void* handle : handles_) dlclose(handle);
}

TwinBody TwinLibrary::find(const Hash& hash) const {
  const auto at = bodies_.find(hash);
  return at == bodies_.end() ? nullptr : at->second;
}

Status TwinLibrary::compile(const std::vector<std::string>& what, const std::string& log) {
  const std::string source = OBELISK_SOURCE_DIR;
  std::vector<std::string> words = {compiler_,
                                    "-std=c++20",
                                    "-O0",
                                    "-march=native",
                                    "-fPIC",
                                    "-w",
                                    "-fno-math-errno",
                                    "-fwrapv",
                                    "-I" + folder_.path(),
                                    "-I" + source + "/tests/gpu",
                                    "-I" + source + "/tests/random",
                                    "-I" + source + "/src"};
  words.insert(words.end(), what.begin(), what.end());
  if (const int status = run_program(words, log, folder_); status != 0)
    return Error{
        Code::kBuild, "twin",
        fmt::format("{} ended with {}: {}", compiler_, status, text_of_file(log).substr(0, 2000))};
  return ok_status();
}

Result<std::unique_ptr<TwinLibrary>> TwinLibrary::create() {
  TRY(TemporaryFolder folder, TemporaryFolder::create());
  std::unique_ptr<TwinLibrary> library(new TwinLibrary(std::move(folder)));
  TRY(library->compiler_, runtime::find_compiler());
  const std::string path = library->folder_.path() + "/";
  for (int k = 0; k < runtime::cuda::kDialectFileCount; ++k) {
    const auto& file = runtime::cuda::kDialectFiles[k];
    std::string text = file.text;
    for (const Substitute& each : kSubstitutes) {
      if (std::filesystem::path(file.name).filename() != each.file) continue;
      const std::string_view found = find_statement(text, each.device);
      if (found.empty())
        return Error{Code::kBuild, "twin",
                     fmt::format("{} has no longer '{}'", file.name, each.device), "",
                     "mend kSubstitutes in twin_library.cpp"};
      text.replace(static_cast<size_t>(found.data() - text.data()), found.size(), each.host);
    }
    std::filesystem::create_directories(std::filesystem::path(path + file.name).parent_path());
    TRY_STATUS(write_file(path + file.name, text));
  }
  TRY_STATUS(write_file(path + "dialect.h", "#include \"core/dialect.cuh\"\n"));
  TRY_STATUS(write_file(path + "all.h", "#include \"twin.h\"\n"));
  TRY_STATUS(library->compile({"-x", "c++-header", path + "all.h", "-o", path + "all.h.gch"},
                              path + "all.log"));
  return library;
}

Status TwinLibrary::add(std::span<const codegen::BodyText* const> bodies) {
  std::string text = "#include \"all.h\"\n";
  std::vector<Hash> added;
  for (const codegen::BodyText* body : bodies) {
    if (!bodies_.try_emplace(body->hash, nullptr).second) continue;
    const std::string name = to_string(body->hash);
    text += fmt::format(
        "#define obk_body obk_body_{0}\n{1}\n#undef obk_body\nTWIN_BODY(twin_{0}, obk_body_{0})\n",
        name, body->text);
    added.push_back(body->hash);
  }
  if (added.empty()) return ok_status();
  const std::string stem = fmt::format("{}/bodies{}", folder_.path(), handles_.size());
  TRY_STATUS(write_file(stem + ".cpp", text));
  if (Status made = compile({"-shared", stem + ".cpp", "-o", stem + ".so", "-lfmt"}, stem + ".log");
      !made.ok()) {
    for (const Hash& hash : added) bodies_.erase(hash);
    return made;
  }
  void* handle = dlopen((stem + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return Error{Code::kBuild, "twin",
                 fmt::format("cannot load the twin of {} bodies: {}", added.size(), dlerror())};
  handles_.push_back(handle);
  for (const Hash& hash : added) {
    bodies_[hash] = reinterpret_cast<TwinBody>(dlsym(handle, ("twin_" + to_string(hash)).c_str()));
    CHECK(bodies_[hash], "the twin lacks {}", to_string(hash));
  }
  return ok_status();
}

std::string beyond_twin(const Program& program) {
  if (!program.customs.empty()) return "custom op";
  if (program.dataflow) return "dataflow";
  for (const codegen::BodyText& body : program.bodies) {
    if (body.traits.gemm) return "pipelined GEMM";
    if (body.traits.calls(codegen::kGangBlock)) return "gang";
    if (body.traits.async_rows) return "async-loaded rows";
  }
  return "";
}

std::string run_twin(const Program& program, const TwinLibrary& library,
                     std::span<const std::vector<Tensor>* const> runs, std::vector<Tensor>& outputs,
                     std::span<const int> order) {
  constexpr int64_t kRoom = 220 * 1024;
  Tensor arena = Tensor::allocate({DType::u8, {std::max<int64_t>(program.arena.count, 256)}});
  memset(arena.mutable_data(), 0, static_cast<size_t>(arena.bytes()));
  outputs.clear();
  for (const runtime::Port& port : program.outputs) outputs.push_back(Tensor::allocate(port.type));
  for (const std::vector<Tensor>* inputs : runs) {
    const auto address = [&](const Place& place) -> void* {
      switch (place.kind) {
        case BufferKind::kInput:
          return const_cast<void*>((*inputs)[static_cast<size_t>(place.index)].data());
        case BufferKind::kOutput:
          return outputs[static_cast<size_t>(place.index)].mutable_data();
        case BufferKind::kWeight:
          return const_cast<void*>(program.weights[static_cast<size_t>(place.index)].data());
        case BufferKind::kArena:
          return static_cast<char*>(arena.mutable_data()) + place.index;
      }
      return nullptr;
    };
    for (Tensor& output : outputs)
      memset(output.mutable_data(), 0xa5, static_cast<size_t>(output.bytes()));
    std::vector<std::vector<void*>> operands;
    for (const WorkRecord& work : program.works) {
      operands.emplace_back();
      for (const Place& place : work.operands) operands.back().push_back(address(place));
    }
    const int steps = order.empty() ? program.waves : static_cast<int>(order.size());
    for (int step = 0; step < steps; ++step)
      for (size_t sm = 0; sm < program.lists.size(); ++sm)
        for (const ObkTask& task : program.lists[sm]) {
          const uint32_t now =
              order.empty() ? static_cast<uint32_t>(step) : static_cast<uint32_t>(order[step]);
          if ((order.empty() ? task.wave : task.work) != now) continue;
          const WorkRecord& work = program.works[task.work];
          const auto form = program.bodies[static_cast<size_t>(work.body)].traits.form;
          TwinTask one{&task,
                       work.params.data(),
                       operands[task.work].data(),
                       work.scratch - work.row_scratch,
                       work.row_scratch,
                       8,
                       static_cast<int32_t>(sm),
                       program.sms,
                       form != codegen::BodyTraits::Form::kGrid};
          while (one.groups > 1 && one.scratch + one.groups * one.row_scratch > kRoom) --one.groups;
          const TwinBody body = library.find(program.bodies[static_cast<size_t>(work.body)].hash);
          CHECK(body, "a body has no twin");
          if (const char* wrong = body(&one); *wrong)
            return fmt::format("work {} ({}), rows {} to {}: {}", task.work, work.label, task.r0,
                               task.r1, wrong);
        }
    for (const Program::Copy& copy : program.copies)
      memcpy(outputs[static_cast<size_t>(copy.output)].mutable_data(), address(copy.from),
             static_cast<size_t>(outputs[static_cast<size_t>(copy.output)].bytes()));
  }
  return "";
}

}  // namespace obelisk::random_graphs
