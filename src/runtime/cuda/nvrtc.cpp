#include "runtime/cuda/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>

#include "base/python.h"
#include "runtime/cuda/dialect_files.h"
#include "runtime/cuda/driver.h"

namespace obelisk::runtime::cuda {
namespace {

namespace fs = std::filesystem;
using Program = struct OpaqueProgram*;

struct Nvrtc {
  int (*CreateProgram)(Program*, const char*, const char*, int, const char* const*,
                       const char* const*) = nullptr;
  int (*DestroyProgram)(Program*) = nullptr;
  int (*CompileProgram)(Program, int, const char* const*) = nullptr;
  int (*GetCUBINSize)(Program, size_t*) = nullptr;
  int (*GetCUBIN)(Program, char*) = nullptr;
  int (*GetPTXSize)(Program, size_t*) = nullptr;
  int (*GetPTX)(Program, char*) = nullptr;
  int (*Version)(int*, int*) = nullptr;
  int (*GetProgramLogSize)(Program, size_t*) = nullptr;
  int (*GetProgramLog)(Program, char*) = nullptr;
  const char* (*GetErrorString)(int) = nullptr;
  std::string path;
};

/// Files in `folder` whose names begin so, the newest version first.
std::vector<std::string> files_named(const fs::path& folder, const std::string& prefix) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with(prefix))
      found.push_back(entry.path().string());
  std::sort(found.rbegin(), found.rend());
  return found;
}

std::vector<fs::path> folders_to_search() {
  std::vector<fs::path> folders;
  if (const char* own = getenv("OBELISK_NVRTC"))
    folders.push_back(fs::is_directory(own) ? fs::path(own) : fs::path(own).parent_path());
  folders.push_back("/usr/local/cuda/lib64");
  for (const std::string& folder : package_parts("nvidia", "lib")) folders.push_back(folder);
  return folders;
}

/// Names a compiler in a place that is not looked into unless asked; empty where none is.
std::string where_else() {
  for (const std::string& folder : package_parts("nvidia", "lib", PythonPlaces::not_asked_for()))
    if (!files_named(folder, "libnvrtc.so").empty()) return folder;
  return "";
}

/// The lines of a log that say "error", the first of them; or its beginning.
std::string errors_of(const std::string& log) {
  std::istringstream lines(log);
  std::string said;
  for (std::string line; said.size() < 2000 && std::getline(lines, line);)
    if (line.find("error") != std::string::npos) said += (said.empty() ? "" : "\n") + line;
  return said.empty() ? log.substr(0, 2000) : said;
}

/// The oldest that compiles all we have tried (tests/cli/oldest_compiler_test.py); 12.0 serialises
/// wgmma where it does not.
constexpr int kOldest[2] = {12, 4};

Result<Nvrtc> load() {
  Nvrtc nvrtc;
  void *library = nullptr, *newer = nullptr;  // newer than the driver: for want of another
  std::string newer_path, too_old;
  const int most = driver_version() > 0 ? driver_version() / 1000 : std::numeric_limits<int>::max();
  auto open = [&](const std::string& path) {
    void* const opened = library ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!opened) return;
    int version[2] = {};
    const auto ask = reinterpret_cast<int (*)(int*, int*)>(dlsym(opened, "nvrtcVersion"));
    const bool said = ask && ask(&version[0], &version[1]) == 0;
    if (!said || std::ranges::lexicographical_compare(version, kOldest)) {
      if (too_old.empty())
        too_old = path + (said ? fmt::format(" is version {}.{}", version[0], version[1])
                               : " has no version");
    } else if (version[0] <= most) {
      library = opened, nvrtc.path = path;
    } else if (!newer) {
      newer = opened, newer_path = path;
    }
  };
  const std::vector<fs::path> folders = folders_to_search();
  const bool named =
      getenv("OBELISK_NVRTC") && !files_named(folders.front(), "libnvrtc.so").empty();
  const auto is_over = [&] {
    return library || (named && (newer || !too_old.empty()));
  };  // what was named is taken or refused
  for (const fs::path& folder : folders) {
    if (is_over()) break;
    for (const std::string& compiler : files_named(folder, "libnvrtc.so")) open(compiler);
  }
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"})
    if (!is_over()) open(name);
  if (!library) library = newer, nvrtc.path = newer_path;
  if (const std::string elsewhere = library || !too_old.empty() ? "" : where_else();
      !elsewhere.empty())
    return Error{Code::kBuild, "runtime",
                 fmt::format("the device compiler libnvrtc is found only in {}, which is not "
                             "looked into unless asked",
                             elsewhere),
                 "", "OBELISK_NVRTC=" + elsewhere};
  if (!library)
    return Error{Code::kBuild, "runtime",
                 too_old.empty()
                     ? "the device compiler libnvrtc is found neither on the library path, nor in "
                       "/usr/local/cuda, nor in the Python environment of Obelisk"
                     : fmt::format("the device compiler is too old: {}, wanted is {}.{} or later",
                                   too_old, kOldest[0], kOldest[1]),
                 "", how_to_install() + ", or set OBELISK_NVRTC to its folder"};
  for (const std::string& builtins :
       files_named(fs::path(nvrtc.path).parent_path(), "libnvrtc-builtins.so"))
    if (dlopen(builtins.c_str(), RTLD_NOW | RTLD_GLOBAL)) break;
  std::string lacks;
  auto resolve = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (!function && lacks.empty()) lacks = symbol;
  };
  resolve(nvrtc.CreateProgram, "nvrtcCreateProgram");
  resolve(nvrtc.DestroyProgram, "nvrtcDestroyProgram");
  resolve(nvrtc.CompileProgram, "nvrtcCompileProgram");
  resolve(nvrtc.GetCUBINSize, "nvrtcGetCUBINSize");
  resolve(nvrtc.GetCUBIN, "nvrtcGetCUBIN");
  resolve(nvrtc.GetPTXSize, "nvrtcGetPTXSize");
  resolve(nvrtc.GetPTX, "nvrtcGetPTX");
  resolve(nvrtc.Version, "nvrtcVersion");
  resolve(nvrtc.GetProgramLogSize, "nvrtcGetProgramLogSize");
  resolve(nvrtc.GetProgramLog, "nvrtcGetProgramLog");
  resolve(nvrtc.GetErrorString, "nvrtcGetErrorString");
  if (!lacks.empty())
    return Error{Code::kBuild, "runtime", fmt::format("{} has no {}", nvrtc.path, lacks), "",
                 how_to_install()};
  return nvrtc;
}

const Result<Nvrtc>& nvrtc() {
  static const Result<Nvrtc> loaded = load();
  return loaded;
}

}  // namespace

std::string how_to_install() {
  const std::string python = find_python();
  return fmt::format("{} -m pip install --upgrade {}", python.empty() ? "python3" : python,
                     driver_version() / 1000 == 12
                         ? fmt::format("'nvidia-cuda-nvrtc-cu12>={}.{}'", kOldest[0], kOldest[1])
                         : "nvidia-cuda-nvrtc");
}

Result<std::string> find_nvrtc() {
  if (!nvrtc().ok()) return nvrtc().error();
  return nvrtc()->path;
}

Result<std::string> find_nvrtc_of_driver() {
  TRY(const std::string path, find_nvrtc());
  const std::string version = nvrtc_version();
  if (const int driver = driver_version(); driver > 0 && atoi(version.c_str()) > driver / 1000)
    return Error{
        Code::kBuild, "runtime",
        fmt::format("{} is version {}, whose code the driver (of CUDA {}.{}) does not load", path,
                    version, driver / 1000, driver % 1000 / 10),
        "", how_to_install() + ", or update the driver"};
  return fmt::format("{} (version {})", path, version);
}

Status check_image(int code) {
  constexpr int kInvalidImage = 200, kNoBinary = 209, kUnsupportedVersion = 222;  // CUDA_ERROR_...
  const Status loaded = check(code, "load the device code");
  if (code != kInvalidImage && code != kNoBinary && code != kUnsupportedVersion) return loaded;
  Error error = loaded.error();
  error.hint = fmt::format(
      "the driver loads code of CUDA {} and older: compile with an NVRTC of it ({}), or update the "
      "driver",
      driver_version() / 1000, how_to_install());
  return error;
}

std::string nvrtc_version() {
  int major = 0, minor = 0;
  if (!nvrtc().ok() || nvrtc()->Version(&major, &minor) != 0) return "";
  return fmt::format("{}.{}", major, minor);
}

std::vector<std::string> wished_options() {
  std::vector<std::string> options;
  if (const char* wished = getenv("OBELISK_LINEINFO"); wished && *wished)
    options.push_back("-lineinfo");
  if (const char* wished = getenv("OBELISK_DEVICE_DEFINES"); wished) {
    std::istringstream words(wished);
    for (std::string word; words >> word;) options.push_back("-D" + word);
  }
  if (const char* wished = getenv("OBELISK_DEVICE_OPTIONS"); wished) {
    std::istringstream words(wished);
    for (std::string word; words >> word;) options.push_back(word);
  }
  return options;
}

Result<Cubin> compile_cubin(const std::string& text, const std::string& architecture,
                            const std::vector<std::string>& defines) {
  if (!nvrtc().ok()) return nvrtc().error();
  const Nvrtc& n = *nvrtc();
  std::vector<const char*> names, texts;
  for (int k = 0; k < kDialectFileCount; ++k) {
    names.push_back(kDialectFiles[k].name), texts.push_back(kDialectFiles[k].text);
    const std::string name = kDialectFiles[k].name;
    if (name == "core/dialect.cuh")
      names.push_back("dialect.h"), texts.push_back(kDialectFiles[k].text);
    if (name == "recurrent/recurrence.cuh")
      names.push_back("recurrence.h"), texts.push_back(kDialectFiles[k].text);
    if (name == "conv/squeeze_excite.cuh")
      names.push_back("squeeze_excite.h"), texts.push_back(kDialectFiles[k].text);
    if (name == "core/types.cuh")
      names.push_back("stdint.h"), texts.push_back(kDialectFiles[k].text);
  }
  Program program = nullptr;
  if (int code = n.CreateProgram(&program, text.c_str(), "program.cu",
                                 static_cast<int>(names.size()), texts.data(), names.data()))
    return Error{Code::kBuild, "runtime",
                 fmt::format("the device compiler: {}", n.GetErrorString(code)), "", ""};
  std::vector<std::string> options = {"-std=c++17", "-default-device", "-arch=" + architecture,
                                      "--ptxas-options=-v"};
  for (const std::string& option : wished_options()) options.push_back(option);
  // Not -split-compile, which shares functions among cores: the same text gives other bytes each
  // time.
  for (const std::string& define : defines) options.push_back("-D" + define);
  // Where there is a driver, newer versions look into its cache (~/.nv/ComputeCache), which
  // `--cache off` and a cleared cache of ours leave full. Ours is the only one: it also holds what
  // the assembler said. Last, since older versions do not know the word.
  options.push_back("--no-cache");
  std::vector<const char*> pointers;
  for (const std::string& option : options) pointers.push_back(option.c_str());
  constexpr int kInvalidOption = 5;
  int code = n.CompileProgram(program, static_cast<int>(pointers.size()), pointers.data());
  if (code == kInvalidOption)
    code = n.CompileProgram(program, static_cast<int>(pointers.size()) - 1, pointers.data());
  Cubin cubin;
  size_t size = 0;
  n.GetProgramLogSize(program, &size);
  cubin.log.resize(size);
  n.GetProgramLog(program, cubin.log.data());
  cubin.log.resize(
      std::min(cubin.log.size(), cubin.log.find('\0')));  // its end is marked by a zero
  if (code == 0) {
    n.GetCUBINSize(program, &size);
    cubin.bytes.resize(size);
    n.GetCUBIN(program, cubin.bytes.data());
    if (n.GetPTXSize(program, &size) == 0 && size > 1) {
      cubin.ptx.resize(size);
      n.GetPTX(program, cubin.ptx.data());
      cubin.ptx.resize(size - 1);  // its end is marked by a zero
    }
  }
  n.DestroyProgram(&program);
  if (code == kInvalidOption && cubin.log.find("-arch") != std::string::npos)
    return Error{Code::kBuild, "runtime",
                 fmt::format("NVRTC {} does not compile for {}: {} does not know it",
                             nvrtc_version(), architecture, n.path),
                 "", how_to_install()};
  if (code != 0)
    return Error{Code::kBuild, "runtime",
                 fmt::format("device code does not compile by NVRTC {} ({}): {}", nvrtc_version(),
                             n.GetErrorString(code), errors_of(cubin.log)),
                 "",
                 fmt::format("{}; if it was the newest, this is a defect of Obelisk: please report "
                             "it with the model",
                             how_to_install())};
  return cubin;
}

}  // namespace obelisk::runtime::cuda
