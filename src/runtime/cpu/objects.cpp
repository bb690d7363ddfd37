#include "runtime/cpu/objects.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/process.h"
#include "base/python.h"
#include "kernels/kernels.h"
#include "runtime/cpu/dialect_files.h"

namespace obelisk::runtime {
namespace {

Error build_error(std::string message, std::string hint = "") {
  return Error{Code::kBuild, "runtime", std::move(message), "", std::move(hint)};
}

const std::vector<std::string> kFlags = {
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fPIC",
    "-shared",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-fno-exceptions",
    "-fno-rtti",
    "-w",
    "-nostartfiles",
#ifdef OBELISK_SANITIZE
    // A sanitised build watches the bodies too.
    "-fsanitize=" OBELISK_SANITIZE,
    "-fno-sanitize-recover=all",
    "-g1",
#endif
};

/// What, besides the body's text, decides the machine code: compiler and its version, flags,
/// dialect, the CPU's features.
std::string build_identity(const std::string& compiler) {
  std::string text = compiler;
  struct stat info;
  if (stat(compiler.c_str(), &info) == 0)
    text += fmt::format(" {} {}", info.st_size, info.st_mtime);
  for (const std::string& flag : kFlags) text += " " + flag;
  for (int k = 0; k < cpu::kDialectFileCount; ++k) text += cpu::kDialectFiles[k].text;
  if (auto info_text = read_file("/proc/cpuinfo"); info_text.ok()) {
    const size_t at = info_text->find("\nflags");
    if (at != std::string::npos) text += info_text->substr(at, info_text->find('\n', at + 1) - at);
  }
  return to_string(hash_text(text));
}

/// How long the host compiler may take for a body: some take seconds, on a busy machine minutes.
double compiler_seconds() {
  const char* set = getenv("OBELISK_COMPILER_SECONDS");
  const double seconds = set ? atof(set) : 0;
  return seconds > 0 ? seconds : 600;
}

std::string first_lines(const std::string& path, int count) {
  auto text = read_file(path);
  if (!text.ok()) return "";
  std::string out;
  size_t at = 0;
  for (int k = 0; k < count && at < text->size(); ++k) {
    const size_t end = std::min(text->find('\n', at), text->size());
    out += "\n  " + text->substr(at, end - at);
    at = end + 1;
  }
  return out;
}

}  // namespace

namespace {

/// The compiler of the package ziglang, of the Python that imports us or that our own program lies
/// in; or empty.
std::string packaged_compiler() {
  PythonPlaces places = PythonPlaces::of_this_process();
  places.bases.clear();  // of the system's packages the compiler is on the PATH
  for (const std::string& packages : package_folders(places))
    if (std::string found = find_program(packages + "/ziglang/zig"); !found.empty()) return found;
  return "";
}

}  // namespace

Result<std::string> find_compiler(const std::string& wanted) {
  if (!wanted.empty()) {
    const std::string found = find_program(wanted);
    if (found.empty())
      return Error{Code::kUsage, "runtime", fmt::format("the compiler '{}' cannot be run", wanted),
                   "", "give the path of g++ or clang++"};
    return found;
  }
  for (const char* variable : {"OBELISK_CXX", "CXX"}) {
    const char* value = getenv(variable);
    if (!value || !*value) continue;
    const std::string found = find_program(value);
    if (!found.empty()) return found;
  }
  for (const char* name : {"g++", "clang++", "c++"}) {
    const std::string found = find_program(name);
    if (!found.empty()) return found;
  }
  if (const std::string found = packaged_compiler(); !found.empty()) return found;
  return Error{Code::kUsage, "runtime", "no C++ compiler was found on the PATH", "",
               "install g++, or ziglang into the Python environment, or run with "
               "--target reference"};
}

std::vector<std::string> compiler_words(const std::string& compiler) {
  std::vector<std::string> words = {compiler};
  // One program that is many. Bodies need no C++ library, which it would build first, for a minute;
  // what it would add to look for undefined behaviour is no part of a body.
  if (compiler.substr(compiler.rfind('/') + 1) == "zig")
    words.insert(words.end(), {"c++", "-nostdlib++", "-fno-sanitize=undefined"});
  return words;
}

std::string cpu_features() {
  std::string out = fmt::format("abi{}.{}", OBK_ABI, kObkVersion);
  const auto text = read_file("/proc/cpuinfo");
  if (!text.ok()) return out;
  const size_t at = text->find("\nflags"),
               colon = at == std::string::npos ? at : text->find(':', at);
  if (colon == std::string::npos) return out;
  std::set<std::string> words;
  std::string word;
  for (size_t k = colon + 1; k < text->size(); ++k) {
    const char c = (*text)[k];
    if (c != ' ' && c != '\n') {
      word += c;
      continue;
    }
    for (const char* family : {"sse", "ssse", "avx", "fma", "bmi", "f16c", "amx", "gfni", "vaes",
                               "vpcl", "popcnt", "movbe", "abm", "adx"})
      if (word.starts_with(family)) words.insert(word);
    word.clear();
    if (c == '\n') break;
  }
  for (const std::string& each : words) out += " " + each;
  return out;
}

std::string cache_folder(const std::string& wanted) {
  if (wanted == "off") return "";
  if (!wanted.empty()) return wanted;
  if (const char* folder = getenv("OBELISK_CACHE"); folder && *folder)
    return std::string(folder) == "off" ? "" : folder;
  if (const char* folder = getenv("XDG_CACHE_HOME"); folder && *folder)
    return std::string(folder) + "/obelisk";
  if (const char* home = getenv("HOME"); home && *home)
    return std::string(home) + "/.cache/obelisk";
  return "";
}

std::shared_ptr<const PrivateFolder> open_cache(const std::string& wanted) {
  const std::string path = cache_folder(wanted);
  if (path.empty()) return nullptr;
  auto folder = PrivateFolder::open(path);
  if (folder.ok()) return *folder;
  static std::mutex mutex;  // guards `said`
  static std::set<std::string> said;
  std::lock_guard lock(mutex);
  if (said.insert(path).second)
    LOG(kWarning, "runtime", "all is compiled every time, for the cache {}; {}",
        folder.error().message, folder.error().hint);
  return nullptr;
}

namespace cpu {

Result<std::unique_ptr<Object>> Object::open(const std::string& path) {
  std::unique_ptr<Object> object(new Object);
  object->handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!object->handle_)
    return build_error(fmt::format("cannot load a compiled body: {}", dlerror()));
  object->body_ = reinterpret_cast<ObkBody>(dlsym(object->handle_, "obk_body"));
  if (!object->body_)
    return build_error(fmt::format("'{}' holds no obk_body", path),
                       "clear the cache: obelisk cache clear");
  TRY(object->bytes_, read_file(path));
  return object;
}

Result<std::unique_ptr<Object>> Object::open_bytes(std::string bytes) {
  const int file = memfd_create("obelisk-body", MFD_CLOEXEC);
  if (file < 0)
    return build_error(fmt::format("no anonymous file can be made: {}", strerror(errno)));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote = write(file, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  auto object = done == bytes.size()
                    ? open(fmt::format("/proc/self/fd/{}", file))
                    : Result<std::unique_ptr<Object>>(build_error("no memory for a body"));
  if (object.ok())
    (*object)->file_ = file;
  else
    close(file);
  return object;
}

Result<std::vector<std::unique_ptr<Object>>> carried_objects(const Program& program) {
  const std::string here = " " + cpu_features() + " ";
  std::string lacking;
  size_t at = 0;
  while (at < program.objects_need.size()) {
    const size_t end = std::min(program.objects_need.find(' ', at), program.objects_need.size());
    const std::string word = program.objects_need.substr(at, end - at);
    if (!word.empty() && here.find(" " + word + " ") == std::string::npos)
      lacking += (lacking.empty() ? "" : ", ") + word;
    at = end + 1;
  }
  if (!lacking.empty())
    return build_error("the file's machine code needs what this CPU lacks: " + lacking);
  std::vector<std::unique_ptr<Object>> objects;
  for (const std::string& bytes : program.objects) {
    TRY(auto object, Object::open_bytes(bytes));
    objects.push_back(std::move(object));
  }
  return objects;
}

std::unique_ptr<Object> Object::borrow(ObkBody body) {
  std::unique_ptr<Object> object(new Object);
  object->body_ = body;
  return object;
}

Object::~Object() {
  if (handle_) dlclose(handle_);
  if (file_ >= 0) close(file_);
}

Result<std::vector<std::unique_ptr<Object>>> build_objects(
    const std::vector<codegen::BodyText>& bodies, const LoadOptions& options, LoadReport& report) {
  std::vector<std::unique_ptr<Object>> objects(bodies.size());
  if (bodies.empty()) return objects;
  if (options.library) {
    size_t held = 0;
    for (size_t b = 0; b < bodies.size(); ++b)
      if (const ObkBody body = options.library->find(bodies[b].hash))
        objects[b] = Object::borrow(body), ++held;
    report.cached += static_cast<int>(held);
    if (held == bodies.size()) return objects;
  }
  TRY(const std::string compiler, find_compiler(options.compiler));
  report.compiler = compiler;
  const std::string identity = build_identity(compiler);
  const auto cache = open_cache(options.cache_dir);
  const double seconds =
      options.compiler_seconds > 0 ? options.compiler_seconds : compiler_seconds();
  TRY(const TemporaryFolder folder, TemporaryFolder::create());
  for (int k = 0; k < kDialectFileCount; ++k)
    TRY_STATUS(write_file(folder.path() + "/" + kDialectFiles[k].name, kDialectFiles[k].text));

  std::atomic<size_t> next{0};
  std::atomic<int> done{0};
  std::mutex mutex;  // guards `first`, report and progress
  std::optional<Error> first;
  const auto interrupted = [&] {
    std::lock_guard lock(mutex);
    return first || (options.interrupted && options.interrupted());
  };
  auto work = [&] {
    for (size_t b = next++; b < bodies.size(); b = next++) {
      if (objects[b]) continue;
      {
        std::lock_guard lock(mutex);
        if (!first && options.interrupted && options.interrupted())
          first = Error{Code::kInterrupted, "runtime", "interrupted while compiling bodies"};
        if (first) return;
      }
      const std::string key = to_string(hash_text(identity + to_string(bodies[b].hash)));
      const std::string kept = key + ".so";
      if (auto bytes = cache ? cache->get(kept) : std::nullopt) {
        auto object = Object::open_bytes(std::move(*bytes));
        if (object.ok()) {
          std::lock_guard lock(mutex);
          objects[b] = std::move(*object);
          ++report.cached;
          if (options.progress) options.progress(++done, static_cast<int>(bodies.size()));
          continue;
        }  // a broken entry is made again
      }
      // The compiler writes the source's name into the object: the hash, so that a body's machine
      // code is always the same bytes.
      const std::string stem = folder.path() + "/" + to_string(bodies[b].hash);
      auto compile = [&]() -> Status {
        TRY_STATUS(write_file(stem + ".cpp", bodies[b].text));
        std::vector<std::string> words = compiler_words(compiler);
        words.insert(words.end(), kFlags.begin(), kFlags.end());
        words.insert(words.end(),
                     {"-iquote", folder.path(), stem + ".cpp", "-o", stem + ".so", "-lm"});
        const int status = run_program(words, stem + ".log", folder,
                                       {.seconds = seconds, .interrupted = interrupted});
        if (status == kStopped)
          return Error{Code::kInterrupted, "runtime", "interrupted while compiling bodies"};
        if (status == kTimedOut)
          return build_error(
              fmt::format("{} was ended after {} s, on a generated body ({})", compiler, seconds,
                          bodies[b].label),
              "set OBELISK_COMPILER_SECONDS to a larger number, or --compiler names another one");
        if (status == kStatusLost)
          return build_error(
              fmt::format("how {} ended is not known: this program, or a library in it, waits for "
                          "children that are not its own",
                          compiler));
        if (status != 0) {
          return build_error(
              fmt::format("{} ended with {} on a generated body ({}):{}", compiler, status,
                          bodies[b].label, first_lines(stem + ".log", 6)),
              "this is a defect of Obelisk or of the compiler; --compiler names another one");
        }
        TRY(auto object, Object::open(stem + ".so"));
        if (cache) {
          if (Status published = cache->put(kept, object->bytes()); !published.ok())
            LOG(kWarning, "runtime", "not cached: {}", published.error().text());
        }
        std::lock_guard lock(mutex);
        objects[b] = std::move(object);
        ++report.compiled;
        if (options.progress) options.progress(++done, static_cast<int>(bodies.size()));
        return ok_status();
      };
      if (Status status = compile(); !status.ok()) {
        std::lock_guard lock(mutex);
        if (!first) first = status.error();
        return;
      }
    }
  };
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  const int jobs =
      std::min<int>(options.jobs > 0 ? options.jobs : cores, static_cast<int>(bodies.size()));
  std::vector<std::thread> threads;
  for (int k = 1; k < jobs; ++k) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (first) return *first;
  return objects;
}

}  // namespace cpu

namespace {

class Library : public BodyLibrary {
 public:
  Library(std::vector<std::string> flags, std::string compiler)
      : flags_(std::move(flags)), compiler_(std::move(compiler)) {}
  ~Library() override {
    for (void* handle : handles_) dlclose(handle);
  }
  size_t count() const override { return bodies_.size(); }
  ObkBody find(const Hash& hash) const override {
    const auto at = bodies_.find(hash);
    return at == bodies_.end() ? nullptr : at->second;
  }
  Status add(std::span<const codegen::BodyText* const> bodies) override {
    std::string text;
    std::vector<Hash> added;
    for (const codegen::BodyText* body : bodies) {
      if (!bodies_.try_emplace(body->hash, nullptr).second) continue;
      text += fmt::format("#define obk_body obk_body_{}\n{}\n#undef obk_body\n",
                          to_string(body->hash), body->text);
      added.push_back(body->hash);
    }
    if (added.empty()) return ok_status();
    Status built = build(text, added);
    if (!built.ok())
      for (const Hash& hash : added) bodies_.erase(hash);
    return built;
  }

 private:
  Status build(const std::string& text, const std::vector<Hash>& added) {
    TRY(const std::string compiler, find_compiler(compiler_));
    TRY(const TemporaryFolder folder, TemporaryFolder::create());
    for (int k = 0; k < cpu::kDialectFileCount; ++k)
      TRY_STATUS(
          write_file(folder.path() + "/" + cpu::kDialectFiles[k].name, cpu::kDialectFiles[k].text));
    const std::string stem = folder.path() + "/bodies";
    TRY_STATUS(write_file(stem + ".cpp", text));
    std::vector<std::string> words = compiler_words(compiler);
    words.insert(words.end(), kFlags.begin(), kFlags.end());
    words.insert(words.end(), flags_.begin(), flags_.end());
    words.insert(words.end(), {"-iquote", folder.path(), stem + ".cpp", "-o", stem + ".so", "-lm"});
    const RunLimits limits = {.seconds = 100 * compiler_seconds()};  // many bodies
    if (const int status = run_program(words, stem + ".log", folder, limits); status != 0)
      return build_error(fmt::format("{} ended with {} on {} generated bodies:{}", compiler, status,
                                     added.size(), first_lines(stem + ".log", 6)));
    void* handle = dlopen((stem + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle)
      return build_error(
          fmt::format("cannot load {} compiled bodies: {}", added.size(), dlerror()));
    handles_.push_back(handle);
    for (const Hash& hash : added) {
      bodies_[hash] =
          reinterpret_cast<ObkBody>(dlsym(handle, ("obk_body_" + to_string(hash)).c_str()));
      CHECK(bodies_[hash], "the compiled bodies lack {}", to_string(hash));
    }
    return ok_status();
  }

  std::vector<std::string> flags_;
  std::string compiler_;
  std::map<Hash, ObkBody> bodies_;
  std::vector<void*> handles_;
};

}  // namespace

std::unique_ptr<BodyLibrary> BodyLibrary::create(std::vector<std::string> flags,
                                                 std::string compiler) {
  return std::make_unique<Library>(std::move(flags), std::move(compiler));
}

}  // namespace obelisk::runtime
