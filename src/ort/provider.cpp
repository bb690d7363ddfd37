#include <algorithm>
#include <cctype>
#include <new>

#include "base/log.h"
#include "ort/calls.h"
#include "ort/fused.h"
#include "ort/graph.h"
#include "ort/options.h"
#include "ort/ort.h"

namespace obelisk::ort {
namespace {

ErrorCode code_of(FailureKind kind) {
  switch (kind) {
    case FailureKind::kUsage:
      return ErrorCode::kInvalidArgument;
    case FailureKind::kBadModel:
      return ErrorCode::kInvalidGraph;
    case FailureKind::kUnsupported:
      return ErrorCode::kNotImplemented;
    default:
      return ErrorCode::kProviderFail;
  }
}

/// Runs a function; what it throws is the answer.
template <typename Function>
Answer* guarded(const Api& api, Function&& function) noexcept {
  try {
    function();
    return nullptr;
  } catch (const Failure& failure) {
    return api.CreateStatus(code_of(failure.kind()),
                            ("Obelisk: " + std::string(failure.what())).c_str());
  } catch (const std::bad_alloc&) {
    return api.CreateStatus(ErrorCode::kProviderFail, "Obelisk: out of memory");
  } catch (const std::exception& bug) {
    return api.CreateStatus(
        ErrorCode::kFail,
        ("Obelisk: " + std::string(bug.what()) + "; this is a defect of Obelisk").c_str());
  }
}

struct Computation : ComputeFunctions {
  const Api& api;
  std::shared_ptr<Fused> fused;
};

/// Of a session.
class Provider : public ProviderFunctions {
 public:
  Provider(const Api& api, CompileOptions options, const Logger* logger)
      : ProviderFunctions{}, api_(api), options_(std::move(options)), logger_(logger) {
    version = kVersion;
    name = [](const ProviderFunctions*) { return kProviderName; };
    get_capability = [](ProviderFunctions* self, const OrtGraph* graph, GraphSupport* support) {
      return of(self).guard([&] { of(self).take_nodes(graph, support); });
    };
    compile = [](ProviderFunctions* self, const OrtGraph** graphs, const OrtNode** nodes,
                 size_t count, ComputeFunctions** functions, OrtNode**) {
      return of(self).guard([&] {
        for (size_t k = 0; k < count; ++k)
          functions[k] = of(self).computation(graphs[k], nodes[k]).release();
      });
    };
    release_functions = [](ProviderFunctions*, ComputeFunctions** functions, size_t count) {
      for (size_t k = 0; k < count; ++k) delete static_cast<Computation*>(functions[k]);
    };
  }

 private:
  static Provider& of(ProviderFunctions* self) { return *static_cast<Provider*>(self); }
  template <typename Function>
  Answer* guard(Function&& function) noexcept {
    return guarded(api_, std::forward<Function>(function));
  }
  void tell(LogSeverity severity, const std::string& text) const {
    if (Answer* lost = api_.Logger_LogMessage(logger_, severity, text.c_str(), "obelisk", 0, ""))
      api_.ReleaseStatus(lost);
  }

  void take_nodes(const OrtGraph* theirs, GraphSupport* support);
  std::vector<std::shared_ptr<Fused>> parts_of(const Graph& graph,
                                               std::map<size_t, std::string>& reasons);
  std::unique_ptr<Computation> computation(const OrtGraph* graph, const OrtNode* fused);

  const Api& api_;
  const CompileOptions options_;
  const Logger* const logger_;
  std::map<std::string, std::shared_ptr<Fused>> taken_;  // by key_of(), until they are fused
};

/// A part is known by a value that it makes: names of values are unique in a graph.
std::string key_of(const Part& part) {
  return part.outputs.empty() ? "" : *std::min_element(part.outputs.begin(), part.outputs.end());
}

bool same(const Part& a, const Part& b) {
  const auto equal = [](const auto& x, const auto& y) {
    return x.first == y.first &&
           std::equal(x.second.begin(), x.second.end(), y.second.begin(), y.second.end());
  };
  return a.model == b.model &&
         std::equal(a.memory.begin(), a.memory.end(), b.memory.begin(), b.memory.end(), equal);
}

/// Groups of which the importer takes all, compiled where shapes are known. Each refusal takes its
/// nodes out and makes new groups of the rest, so this ends.
std::vector<std::shared_ptr<Fused>> Provider::parts_of(const Graph& graph,
                                                       std::map<size_t, std::string>& reasons) {
  std::vector<bool> refused(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (!graph.nodes[n].refused.empty()) refused[n] = true, reasons[n] = graph.nodes[n].refused;
  std::map<Group, std::shared_ptr<Fused>> taken;
  const auto refuse = [&](size_t n, const std::string& reason) {
    refused[n] = true, reasons[n] = reason;
  };
  for (;;) {
    const std::vector<Group> groups = groups_of(graph, refused);
    const bool settled = std::all_of(groups.begin(), groups.end(),
                                     [&](const Group& group) { return taken.contains(group); });
    std::vector<std::shared_ptr<Fused>> parts;
    for (const Group& group : groups) {
      if (settled) {
        parts.push_back(taken[group]);
        continue;
      }
      if (taken.contains(group)) continue;
      Part part = write_part(graph, group);
      const std::vector<Refusal> refusals = check_part(graph, part);
      for (const Refusal& each : refusals) refuse(each.node, each.reason);
      if (!refusals.empty()) continue;
      auto fused = std::make_shared<Fused>(std::move(part), options_);
      if (!fused->part().known_shapes()) {
        taken[group] = fused;
        continue;
      }
      try {
        fused->compile();
        taken[group] = fused;
      } catch (const Failure& failure) {
        tell(LogSeverity::kWarning,
             std::string("Obelisk leaves a group to others: ") + failure.what());
        for (size_t n : group) refuse(n, failure.what());
      }
    }
    if (settled) return parts;
  }
}

void Provider::take_nodes(const OrtGraph* theirs, GraphSupport* support) {
  const Graph graph = read_graph(api_, theirs);
  std::map<size_t, std::string> reasons;
  const std::vector<std::shared_ptr<Fused>> parts = parts_of(graph, reasons);
  size_t count = 0;
  for (const auto& fused : parts) {
    std::vector<const OrtNode*> nodes;
    for (size_t n : fused->part().nodes) nodes.push_back(graph.nodes[n].theirs);
    FusionOptions fusion;
    fusion.drop_constant_initializers = true;
    must(api_,
         api_.EpGraphSupportInfo_AddNodesToFuse(support, nodes.data(), nodes.size(), &fusion));
    taken_[key_of(fused->part())] = fused;
    count += nodes.size();
  }
  tell(LogSeverity::kInfo, fmt::format("Obelisk takes {} of {} nodes in {} groups", count,
                                       graph.nodes.size(), parts.size()));
  for (const auto& [n, reason] : reasons)
    tell(LogSeverity::kInfo,
         fmt::format("Obelisk leaves {} '{}': {}", graph.nodes[n].op, graph.nodes[n].name, reason));
}

std::unique_ptr<Computation> Provider::computation(const OrtGraph* theirs, const OrtNode* node) {
  const Graph graph = read_graph(api_, theirs);
  Group all(graph.nodes.size());
  for (size_t n = 0; n < all.size(); ++n) all[n] = n;
  Part part = write_part(graph, all);
  // What was compiled when nodes were asked for, where it is the same to the last bit: inner graphs
  // may use each other's names, and others may have left since.
  std::shared_ptr<Fused> fused;
  if (const auto found = taken_.find(key_of(part));
      found != taken_.end() && same(part, found->second->part()))
    fused = std::move(found->second), taken_.erase(found);
  if (!fused) {
    tell(LogSeverity::kVerbose, "Obelisk compiles a group again, for it changed");
    fused = std::make_shared<Fused>(std::move(part), options_);
    if (fused->part().known_shapes()) fused->compile();
  }
  const auto names_of = [&](auto count, auto list) {
    std::vector<const ValueInfo*> values(ask<size_t>(api_, count, node));
    if (!values.empty()) must(api_, list(node, values.data(), values.size()));
    std::vector<std::string> names;
    for (const ValueInfo* value : values)
      names.emplace_back(value ? ask<const char*>(api_, api_.GetValueInfoName, value) : "");
    return names;
  };
  fused->set_order(names_of(api_.Node_GetNumInputs, api_.Node_GetInputs),
                   names_of(api_.Node_GetNumOutputs, api_.Node_GetOutputs));
  return std::unique_ptr<Computation>(new Computation{
      {kVersion,
       [](ComputeFunctions* self, ComputeContext*, void** state) -> Answer* {
         *state = self;
         return nullptr;
       },
       [](ComputeFunctions* self, void*, KernelContext* session) {
         auto& inside = *static_cast<Computation*>(self);
         return guarded(inside.api, [&] { inside.fused->compute(inside.api, session); });
       },
       [](ComputeFunctions*, void*) {}},
      api_,
      std::move(fused)});
}

/// The session's options that are meant for this provider: "ep.<its name in small letters>.…".
std::vector<std::pair<std::string, std::string>> entries_of(const Api& api,
                                                            const SessionOptions* options) {
  std::string prefix = "ep." + std::string(kProviderName) + ".";
  std::transform(prefix.begin(), prefix.end(), prefix.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  auto* pairs = ask<Pairs*>(api, api.GetSessionOptionsConfigEntries, options);
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  api.GetKeyValuePairs(pairs, &keys, &values, &count);
  std::vector<std::pair<std::string, std::string>> ours;
  bool context_model = false;
  for (size_t k = 0; k < count; ++k) {
    const std::string key = keys[k];
    if (key.starts_with(prefix)) ours.emplace_back(key.substr(prefix.size()), values[k]);
    context_model |= key == "ep.context_enable" && std::string(values[k]) == "1";
  }
  api.ReleaseKeyValuePairs(pairs);
  if (context_model)
    throw Failure(FailureKind::kUnsupported, "no EPContext models are made", "", "",
                  "no EPContext models are made (ep.context_enable); what was compiled is kept in "
                  "the cache");
  return ours;
}

class Factory : public FactoryFunctions {
 public:
  explicit Factory(const Api& api) : FactoryFunctions{}, api_(api) {
    version = kVersion;
    name = [](const FactoryFunctions*) { return kProviderName; };
    vendor = [](const FactoryFunctions*) { return "Obelisk"; };
    vendor_id = [](const FactoryFunctions*) -> uint32_t { return 0; };
    provider_version = [](const FactoryFunctions*) { return OBELISK_VERSION; };
    supported_devices = [](FactoryFunctions* self, const Device* const* devices, size_t count,
                           ProviderDevice** taken, size_t most, size_t* taken_count) {
      *taken_count = 0;
      const Api& api = of(self).api_;
      return guarded(api, [&] {
        for (size_t k = 0; k < count && *taken_count < most; ++k)
          if (api.HardwareDevice_Type(devices[k]) == DeviceType::kCpu)
            taken[(*taken_count)++] =
                ask<ProviderDevice*>(api, api.CreateEpDevice, self, devices[k], nullptr, nullptr);
      });
    };
    create = [](FactoryFunctions* self, const Device* const*, const Pairs* const*, size_t,
                const SessionOptions* options, const Logger* logger, ProviderFunctions** made) {
      *made = nullptr;
      const Api& api = of(self).api_;
      return guarded(
          api, [&] { *made = new Provider(api, options_of(entries_of(api, options)), logger); });
    };
    release = [](FactoryFunctions*, ProviderFunctions* provider) {
      delete static_cast<Provider*>(provider);
    };
    // Inputs and outputs lie in the session's own memory, and runs end before compute() returns.
    create_allocator = [](FactoryFunctions*, const MemoryInfo*, const Pairs*,
                          Allocator** allocator) -> Answer* {
      *allocator = nullptr;
      return nullptr;
    };
    release_allocator = [](FactoryFunctions*, Allocator*) {};
    create_data_transfer = [](FactoryFunctions*, DataTransfer** transfer) -> Answer* {
      *transfer = nullptr;
      return nullptr;
    };
    is_stream_aware = [](const FactoryFunctions*) { return false; };
    create_sync_stream = [](FactoryFunctions*, const MemoryDevice*, const Pairs*,
                            SyncStream** stream) -> Answer* {
      *stream = nullptr;
      return nullptr;
    };
  }

 private:
  static Factory& of(FactoryFunctions* self) { return *static_cast<Factory*>(self); }
  const Api& api_;
};

}  // namespace

Answer* create_factories(const ApiBase* base, FactoryFunctions** factories, size_t most,
                         size_t* count) {
  *count = 0;
  const Api* api = Api::of(*base);
  if (!api) {
    // The first functions of the table, with which a refusal is told, are there in every version.
    const void* const* oldest = base->get_api(1);
    const auto create = reinterpret_cast<decltype(Api::CreateStatus)>(const_cast<void*>(oldest[0]));
    const std::string text = fmt::format("Obelisk: ONNX Runtime is {}, wanted is 1.{} or later",
                                         base->version_string(), kVersion);
    return create(ErrorCode::kNotImplemented, text.c_str());
  }
  if (most < 1)
    return api->CreateStatus(ErrorCode::kInvalidArgument, "Obelisk: no room for a factory");
  static Factory factory(*api);  // sessions ask it to release their provider, whenever they end
  factories[0] = &factory, *count = 1;
  return nullptr;
}

Answer* release_factory(FactoryFunctions*) { return nullptr; }

}  // namespace obelisk::ort
