/// ort/abi.h — the part of ONNX Runtime's C interface that a plug-in execution provider needs.
///
/// The interface is tables of functions whose order is fixed for good: later versions append. Here
/// stand the places (functions.def) and signatures of those that are called, and the layouts of
/// the structs that a provider fills in. Each of these begins with the version that it was written
/// for, so that a newer ONNX Runtime leaves alone what came later. No header of theirs is needed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace obelisk::ort {

/// The first with TensorTypeAndShape_HasShape, which tells a scalar from an unknown shape.
inline constexpr uint32_t kVersion = 24;

// Theirs, seen through pointers only.
struct Answer;  // of a function that may fail; null: it did not
struct Device;
struct ProviderDevice;
struct GraphSupport;
struct OrtGraph;
struct OrtNode;
struct ValueInfo;
struct TypeInfo;
struct TensorInfo;
struct Attribute;
struct Value;
struct Pairs;
struct SessionOptions;
struct Logger;
struct KernelContext;
struct ComputeContext;
struct Allocator;
struct MemoryInfo;
struct MemoryDevice;
struct DataTransfer;
struct SyncStream;

enum class ErrorCode : int {
  kFail = 1,
  kInvalidArgument = 2,
  kInvalidGraph = 10,
  kProviderFail = 11,
  kNotImplemented = 9
};
enum class LogSeverity : int { kVerbose = 0, kInfo = 1, kWarning = 2 };
enum class DeviceType : int { kCpu = 0, kGpu = 1 };
enum class ValueKind : int { kTensor = 1 };
enum class AttributeKind : int {
  kUndefined = 0,
  kInt,
  kInts,
  kFloat,
  kFloats,
  kString,
  kStrings,
  kGraph,
  kTensor
};

// Ours, below.
struct FactoryFunctions;
struct FusionOptions;

struct ApiBase {
  const void* const* (*get_api)(uint32_t version);
  const char* (*version_string)();
};

/// The functions of both tables (OrtApi, OrtEpApi), by their names there.
struct Api {
#define ORT_FUNCTION(place, result, name, ...) result (*name)(__VA_ARGS__);
#define ORT_PROVIDER_FUNCTION ORT_FUNCTION
#include "ort/functions.def"

  /// Null where the library is older than kVersion.
  static const Api* of(const ApiBase& base);
};

struct FusionOptions {
  uint32_t version = kVersion;
  bool drop_constant_initializers = false;  // they are not inputs of the fused node
};

/// What computes a fused node. OrtNodeComputeInfo.
struct ComputeFunctions {
  uint32_t version;
  Answer* (*create_state)(ComputeFunctions*, ComputeContext*, void** state);
  Answer* (*compute)(ComputeFunctions*, void* state, KernelContext*);
  void (*release_state)(ComputeFunctions*, void* state);
};

/// A provider in a session. OrtEp.
struct ProviderFunctions {
  uint32_t version;
  const char* (*name)(const ProviderFunctions*);
  Answer* (*get_capability)(ProviderFunctions*, const OrtGraph*, GraphSupport*);
  Answer* (*compile)(ProviderFunctions*, const OrtGraph** graphs, const OrtNode** fused,
                     size_t count, ComputeFunctions** functions, OrtNode** context_nodes);
  void (*release_functions)(ProviderFunctions*, ComputeFunctions**, size_t count);
  // Layout, dynamic options, begin and end of a run, memory, streams, kernels of single ops and
  // what later versions added: a provider that has none of them leaves null.
  void* not_provided[32];
};

/// What makes providers. OrtEpFactory.
struct FactoryFunctions {
  uint32_t version;
  const char* (*name)(const FactoryFunctions*);
  const char* (*vendor)(const FactoryFunctions*);
  Answer* (*supported_devices)(FactoryFunctions*, const Device* const* devices, size_t count,
                               ProviderDevice** taken, size_t most, size_t* taken_count);
  Answer* (*create)(FactoryFunctions*, const Device* const* devices, const Pairs* const* metadata,
                    size_t count, const SessionOptions*, const Logger*, ProviderFunctions**);
  void (*release)(FactoryFunctions*, ProviderFunctions*);
  uint32_t (*vendor_id)(const FactoryFunctions*);
  const char* (*provider_version)(const FactoryFunctions*);
  void* validate_compiled_model;
  Answer* (*create_allocator)(FactoryFunctions*, const MemoryInfo*, const Pairs*, Allocator**);
  void (*release_allocator)(FactoryFunctions*, Allocator*);
  Answer* (*create_data_transfer)(FactoryFunctions*, DataTransfer**);
  bool (*is_stream_aware)(const FactoryFunctions*);
  Answer* (*create_sync_stream)(FactoryFunctions*, const MemoryDevice*, const Pairs*, SyncStream**);
  void* not_provided[32];  // and what later versions added
};

}  // namespace obelisk::ort
