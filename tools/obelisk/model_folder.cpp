#include "model_folder.h"

#include <stdexcept>

// toml++ 3.3 asserts, or assumes, what some malformed documents break ("[[["): here that throws.
#undef NDEBUG
#define TOML_ASSERT(holds) \
  ((holds) ? void() : throw std::invalid_argument("keys or brackets where none may be"))
#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wterminate"
#include <toml++/toml.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <filesystem>
#include <set>

#include "compile.h"
#include "serve/background.h"

namespace obelisk::cli {
namespace {

namespace fs = std::filesystem;
using serve::ModelConfig;

constexpr const char* kSettings = "model.toml";
constexpr uintmax_t kLongestSettings = 1 << 20;

/// One name of a folder: no way out of the repository.
bool is_name(const std::string& name) {
  return !name.empty() && name.size() <= 200 && name[0] != '.' &&
         std::none_of(name.begin(), name.end(),
                      [](unsigned char c) { return c == '/' || c == '\\' || c < 0x20; });
}

Error wrong(const std::string& file, const toml::node& at, std::string message,
            std::string hint = "") {
  return Error{Code::kUsage, "serve",
               fmt::format("{}:{}: {}", file, at.source().begin.line, message), "",
               std::move(hint)};
}

template <typename T>
std::optional<T> number_in(const toml::node& node, T low, T high) {
  const auto value = node.value<T>();
  return value && *value >= low && *value <= high ? value : std::nullopt;
}

constexpr const char* kKeys =
    "file, target, precision, granularity, batch_invariant, batch, batch_dimension, deadline_ms, "
    "priority, weight, queue_limit, memory_mib, [dimensions]";

constexpr const char* kTenantKeys =
    "deadline_ms, priority, weight, rate, burst, in_flight, in a table for each tenant";

Result<toml::table> parse(const std::string& text, const std::string& file, const char* keys) {
  const auto refused = [&](std::string_view why, uint32_t line) {
    return Error{
        Code::kUsage, "serve",
        fmt::format("{} is not TOML: {}", line > 0 ? fmt::format("{}:{}", file, line) : file, why),
        "", fmt::format("a line is KEY = VALUE; keys are {}", keys)};
  };
  try {
    toml::parse_result parsed = toml::parse(text, file);
    if (!parsed) return refused(parsed.error().description(), parsed.error().source().begin.line);
    return std::move(parsed).table();
  } catch (const std::invalid_argument& error) {
    return refused(error.what(), 0);
  }
}

Status read_settings(const std::string& file, ModelConfig& config,
                     std::optional<std::string>& model_file, bool& batch_given) {
  std::error_code failed;
  if (const auto size = fs::file_size(file, failed); failed || size > kLongestSettings)
    return Error{Code::kUsage, "serve",
                 fmt::format("{}: {}", file, failed ? failed.message() : "longer than a mebibyte"),
                 "", ""};
  TRY(const std::string text, read_file(file));
  TRY(const toml::table parsed, parse(text, file, kKeys));
  for (const auto& [key, value] : parsed) {
    const std::string_view name = key.str();
    const auto expected = [&, &value = value](const char* what) {
      return wrong(file, value, fmt::format("'{}' is {}", name, what));
    };
    const auto text_to = [&, &value = value](std::string& to) -> Status {
      const auto given = value.value_exact<std::string>();
      if (!given) return expected("a string");
      to = *given;
      return ok_status();
    };
    if (name == "file") {
      std::string given;
      TRY_STATUS(text_to(given));
      if (!is_name(given)) return expected("the name of a file in the model's folder");
      model_file = given;
    } else if (name == "target") {
      TRY_STATUS(text_to(config.target));
    } else if (name == "precision") {
      TRY_STATUS(text_to(config.precision));
      if (!passes::parse_precision(config.precision))
        return expected("keep, fp32, tf32, fp16 or bf16");
    } else if (name == "granularity") {
      TRY_STATUS(text_to(config.granularity));
      if (!compiler::parse_wanted_granularity(config.granularity).ok())
        return expected("mono, stitch, op or auto");
    } else if (name == "batch_invariant") {
      const auto given = value.value_exact<bool>();
      if (!given) return expected("true or false");
      config.batch_invariant = *given;
    } else if (name == "batch_dimension") {
      TRY_STATUS(text_to(config.batch_dimension));
    } else if (name == "batch") {
      const auto given = number_in<int64_t>(value, 1, 4096);
      if (!given) return expected("a number from 1 to 4096: the rows that run together at most");
      config.max_batch = static_cast<int>(*given), batch_given = true;
    } else if (name == "deadline_ms") {
      const auto given = number_in<double>(value, 0.001, 1e9);
      if (!given) return expected("a number of milliseconds");
      config.deadline = std::chrono::nanoseconds(static_cast<int64_t>(*given * 1e6));
    } else if (name == "priority") {
      const auto given = number_in<int64_t>(value, 0, 1'000'000);
      if (!given) return expected("a number from 0 on, smaller is more urgent");
      config.priority = static_cast<int>(*given);
    } else if (name == "weight") {
      const auto given = number_in<double>(value, 1e-6, 1e6);
      if (!given) return expected("a number above 0");
      config.weight = *given;
    } else if (name == "queue_limit") {
      const auto given = number_in<int64_t>(value, 1, 1 << 24);
      if (!given) return expected("a number from 1 on");
      config.queue_limit = static_cast<int>(*given);
    } else if (name == "memory_mib") {
      const auto given = number_in<double>(value, 0.001, 1e9);
      if (!given) return expected("a number of mebibytes");
      config.memory_limit = static_cast<int64_t>(*given * (1 << 20));
    } else if (name == "dimensions") {
      const toml::table* table = value.as_table();
      if (!table) return expected("a table of numbers: [dimensions] sequence = 128");
      for (const auto& [dimension, extent] : *table) {
        const auto given = number_in<int64_t>(extent, 0, int64_t{1} << 40);
        if (!given)
          return wrong(file, extent, fmt::format("dimension '{}' is a number", dimension.str()));
        config.dimensions[std::string(dimension.str())] = *given;
      }
    } else {
      return wrong(file, value, fmt::format("there is no setting '{}'", name), kKeys);
    }
  }
  return ok_status();
}

/// Which symbolic dimension joins requests: the first axis of every input, where it is the same
/// everywhere.
Status find_batch(ModelConfig& config, bool batch_given) {
  TRY(const frontends::onnx::Model model, frontends::onnx::read_model(config.path));
  const frontends::ModelDescription description = frontends::inspect(model);
  for (const auto& [name, extent] : config.dimensions)
    if (std::find(description.symbols.begin(), description.symbols.end(), name) ==
        description.symbols.end())
      return Error{Code::kUsage, "serve",
                   fmt::format("model '{}' has no dimension '{}'", config.name, name), "",
                   "its dimensions: " + join(description.symbols, ", ")};
  if (config.batch_dimension.empty() && !description.inputs.empty()) {
    std::set<std::string> first;
    for (const auto& port : description.inputs)
      first.insert(port.shape.empty() ? "" : port.shape[0]);
    const std::string& name = *first.begin();
    if (first.size() == 1 && !config.dimensions.contains(name) &&
        std::find(description.symbols.begin(), description.symbols.end(), name) !=
            description.symbols.end())
      config.batch_dimension = name;
  }
  if (config.batch_dimension.empty() && batch_given && config.max_batch > 1)
    return Error{Code::kUsage, "serve",
                 fmt::format("model '{}' has a batch of {}, but its inputs have no common first "
                             "dimension without a size",
                             config.name, config.max_batch),
                 "", "batch_dimension = NAME"};
  if (!config.batch_dimension.empty() && !batch_given) config.max_batch = 8;
  for (const std::string& symbol : description.symbols)
    if (symbol != config.batch_dimension && !config.dimensions.contains(symbol))
      return Error{Code::kUsage, "serve",
                   fmt::format("dimension '{}' of model '{}' has no size", symbol, config.name), "",
                   fmt::format("{}: [dimensions] {} = 128", kSettings, symbol)};
  return ok_status();
}

}  // namespace

Result<std::map<std::string, serve::door::TenantClass>> read_tenants(const std::string& path) {
  TRY(const std::string text, read_file(path));
  TRY(const toml::table parsed, parse(text, path, kTenantKeys));
  std::map<std::string, serve::door::TenantClass> all;
  for (const auto& [tenant, settings] : parsed) {
    const toml::table* table = settings.as_table();
    if (!table)
      return wrong(path, settings, fmt::format("'{}' is no table", tenant.str()),
                   fmt::format("[{}], then {}", tenant.str(), kTenantKeys));
    serve::door::TenantClass& one = all[std::string(tenant.str())];
    for (const auto& [key, value] : *table) {
      const std::string_view name = key.str();
      const auto number = [&, &value = value](auto low, auto high, auto set) -> Status {
        const auto given = number_in<decltype(low)>(value, low, high);
        if (!given)
          return wrong(path, value, fmt::format("'{}' is a number from {} to {}", name, low, high));
        set(*given);
        return ok_status();
      };
      if (name == "deadline_ms") {
        TRY_STATUS(number(0.001, 1e9, [&](double ms) {
          one.deadline = std::chrono::nanoseconds(static_cast<int64_t>(ms * 1e6));
        }));
      } else if (name == "priority") {
        TRY_STATUS(number(int64_t{1}, int64_t{1'000'000},
                          [&](int64_t given) { one.priority = static_cast<int>(given); }));
      } else if (name == "weight") {
        TRY_STATUS(number(1e-6, 1e6, [&](double given) { one.weight = given; }));
      } else if (name == "rate") {
        TRY_STATUS(number(1e-3, 1e9, [&](double given) { one.rate = given; }));
      } else if (name == "burst") {
        TRY_STATUS(number(1.0, 1e9, [&](double given) { one.burst = given; }));
      } else if (name == "in_flight") {
        TRY_STATUS(number(int64_t{1}, int64_t{1} << 24,
                          [&](int64_t given) { one.in_flight = static_cast<int>(given); }));
      } else {
        return wrong(path, value, fmt::format("there is no setting '{}'", name), kTenantKeys);
      }
    }
  }
  return all;
}

Result<ModelFolder> ModelFolder::open(const std::string& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed))
    return Error{Code::kUsage, "serve", fmt::format("there is no folder '{}'", path), "",
                 "a folder with a folder for each model"};
  return ModelFolder(path);
}

std::vector<std::string> ModelFolder::names() const {
  std::vector<std::string> names;
  std::error_code failed;
  for (auto entry = fs::directory_iterator(path_, failed);
       !failed && entry != fs::directory_iterator(); entry.increment(failed)) {
    std::error_code no_folder;
    const std::string name = entry->path().filename().string();
    if (is_name(name) && entry->is_directory(no_folder)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<Result<ModelConfig>> ModelFolder::find(const std::string& name) const {
  std::error_code failed;
  const fs::path folder = fs::path(path_) / name;
  if (!is_name(name) || !fs::is_directory(folder, failed)) return std::nullopt;
  const auto read = [&]() -> Result<ModelConfig> {
    ModelConfig config;
    config.name = name;
    std::optional<std::string> file;
    bool batch_given = false;
    if (const fs::path settings = folder / kSettings; fs::exists(settings, failed))
      TRY_STATUS(read_settings(settings.string(), config, file, batch_given));
    if (file) {
      config.path = (folder / *file).string();
    } else {
      for (const char* usual : {"model.onnx", "model.obk"})
        if (config.path.empty() && fs::exists(folder / usual, failed))
          config.path = (folder / usual).string();
    }
    if (config.path.empty() || !fs::is_regular_file(config.path, failed))
      return Error{Code::kUsage, "serve",
                   fmt::format("the folder of model '{}' has no {}", name,
                               file.value_or("model.onnx and no model.obk")),
                   "", "file = NAME in its model.toml names another"};
    if (!config.path.ends_with(".obk") && !config.path.ends_with(".ir"))
      TRY_STATUS(serve::behind_requests([&] { return find_batch(config, batch_given); }));
    return config;
  };
  return read();
}

}  // namespace obelisk::cli
