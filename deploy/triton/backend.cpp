/// backend.cpp — models of Triton Inference Server that Obelisk runs: libtriton_obelisk.so.
///
/// All models of a process share one obelisk::Server, so that requests of different models are
/// scheduled together. A request is handed on as it comes, and answered when it is done: Triton's
/// own batcher is not needed.
///
///   models/scores/config.pbtxt     backend: "obelisk", inputs, outputs, parameters
///   models/scores/1/model.onnx     or model.obk
///
/// Parameters of config.pbtxt: `batch_dimension` (the symbol along which requests are joined, up to
/// max_batch_size), `dimension.SYMBOL` (a size), `deadline_us`, `precision`, `batch_invariant`
/// (true, false), `priority`. The first model that is loaded says what they run on: `target` (cpu,
/// cuda).
#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "obelisk/server.h"
#include "triton_api.h"

namespace {

using Json = nlohmann::json;

struct Types {
  TRITONSERVER_DataType theirs;
  obelisk::Element ours;
};
constexpr Types kTypes[] = {{TRITONSERVER_TYPE_BOOL, obelisk::Element::b1},
                            {TRITONSERVER_TYPE_UINT8, obelisk::Element::u8},
                            {TRITONSERVER_TYPE_UINT16, obelisk::Element::u16},
                            {TRITONSERVER_TYPE_UINT32, obelisk::Element::u32},
                            {TRITONSERVER_TYPE_UINT64, obelisk::Element::u64},
                            {TRITONSERVER_TYPE_INT8, obelisk::Element::i8},
                            {TRITONSERVER_TYPE_INT16, obelisk::Element::i16},
                            {TRITONSERVER_TYPE_INT32, obelisk::Element::i32},
                            {TRITONSERVER_TYPE_INT64, obelisk::Element::i64},
                            {TRITONSERVER_TYPE_FP16, obelisk::Element::f16},
                            {TRITONSERVER_TYPE_FP32, obelisk::Element::f32},
                            {TRITONSERVER_TYPE_FP64, obelisk::Element::f64},
                            {TRITONSERVER_TYPE_BF16, obelisk::Element::bf16}};

TRITONSERVER_Error* error(TRITONSERVER_Error_Code code, const std::string& text) {
  return TRITONSERVER_ErrorNew(code, text.c_str());
}

/// What Triton said no to; its error goes back to it.
struct Refused {
  TRITONSERVER_Error* error;
};
void must(TRITONSERVER_Error* failed) {
  if (failed) throw Refused{failed};
}

/// Runs what may throw; what it threw as an error of Triton's.
template <typename F>
TRITONSERVER_Error* guarded(F&& run) {
  try {
    run();
    return nullptr;
  } catch (const Refused& refused) {
    return refused.error;
  } catch (const std::exception& failed) {
    return error(TRITONSERVER_ERROR_INTERNAL, failed.what());
  }
}

/// The one engine; it goes with the last model.
std::shared_ptr<obelisk::Server> engine(const obelisk::ServerOptions& options) {
  static std::mutex mutex;
  static std::weak_ptr<obelisk::Server> shared;
  const std::lock_guard lock(mutex);
  auto server = shared.lock();
  if (!server) shared = server = std::make_shared<obelisk::Server>(options);
  return server;
}

struct Model {
  std::string name;
  std::shared_ptr<obelisk::Server> server;
};

std::unique_ptr<Model> load(TRITONBACKEND_Model* triton) {
  const char* name = nullptr;
  const char* folder = nullptr;
  uint64_t version = 0;
  TRITONBACKEND_ArtifactType kind;
  must(TRITONBACKEND_ModelName(triton, &name));
  must(TRITONBACKEND_ModelVersion(triton, &version));
  must(TRITONBACKEND_ModelRepository(triton, &kind, &folder));
  TRITONSERVER_Message* message = nullptr;
  const char* text = nullptr;
  size_t bytes = 0;
  must(TRITONBACKEND_ModelConfig(triton, 1, &message));
  TRITONSERVER_Error* unread = TRITONSERVER_MessageSerializeToJson(message, &text, &bytes);
  const Json config = unread ? Json() : Json::parse(text, text + bytes);
  TRITONSERVER_MessageDelete(message);
  must(unread);

  obelisk::ServeOptions options;
  obelisk::ServerOptions server;
  options.max_batch = std::max(1, config.value("max_batch_size", 0));
  const Json parameters = config.value("parameters", Json::object());
  for (const auto& [key, value] : parameters.items()) {
    const std::string given = value.value("string_value", "");
    if (key.starts_with("dimension."))
      options.dimensions[key.substr(10)] = std::stoll(given);
    else if (key == "batch_dimension")
      options.batch_dimension = given;
    else if (key == "deadline_us")
      options.deadline = std::chrono::microseconds(std::stoll(given));
    else if (key == "precision")
      options.precision = given;
    else if (key == "batch_invariant" && (given == "true" || given == "false"))
      options.batch_invariant = given == "true";
    else if (key == "batch_invariant")
      throw std::runtime_error("parameter 'batch_invariant' is '" + given +
                               "', neither true nor false");
    else if (key == "priority")
      options.priority = std::stoi(given);
    else if (key == "target")
      server.target = given;
    else
      throw std::runtime_error("config.pbtxt has a parameter '" + key +
                               "', which the obelisk backend does not know");
  }
  const auto file = [&](const char* usual) {
    return std::filesystem::path(folder) / std::to_string(version) / usual;
  };
  const auto path = exists(file("model.obk")) ? file("model.obk") : file("model.onnx");
  auto model = std::make_unique<Model>();
  // A model that is loaded again is there twice for a while.
  static std::atomic<uint64_t> loads{0};
  model->name = std::string(name) + "/" + std::to_string(version) + "#" + std::to_string(++loads);
  model->server = engine(server);
  model->server->add(model->name, path.string(), options);
  try {
    model->server->wait(model->name);
  } catch (...) {
    model->server->remove(model->name);
    throw;
  }
  return model;
}

obelisk::Input read(TRITONBACKEND_Input* triton) {
  const char* name = nullptr;
  TRITONSERVER_DataType type;
  const int64_t* shape = nullptr;
  uint32_t rank = 0, buffers = 0;
  uint64_t bytes = 0;
  must(TRITONBACKEND_InputProperties(triton, &name, &type, &shape, &rank, &bytes, &buffers));
  obelisk::Input input;
  input.name = name, input.shape.assign(shape, shape + rank);
  const auto known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const Types& one) { return one.theirs == type; });
  if (known == std::end(kTypes))
    throw Refused{error(TRITONSERVER_ERROR_UNSUPPORTED,
                        "input '" + input.name + "' is of a type that is not served")};
  input.element = known->ours;
  const auto part = [&](uint32_t at, uint64_t& size) {
    const void* memory = nullptr;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
    int64_t device = 0;
    must(TRITONBACKEND_InputBuffer(triton, at, &memory, &size, &kind, &device));
    if (kind == TRITONSERVER_MEMORY_GPU)
      throw Refused{error(TRITONSERVER_ERROR_UNSUPPORTED,
                          "input '" + input.name + "' is in the memory of a GPU")};
    return static_cast<const std::byte*>(memory);
  };
  if (buffers == 1) {
    uint64_t size = 0;
    const std::byte* memory = part(0, size);
    input.bytes = {memory, size};
    // It lives until the request is released, which is after its answer.
    input.owner = std::shared_ptr<const void>(memory, [](const void*) {});
    return input;
  }
  const auto joined = std::make_shared<std::vector<std::byte>>();
  for (uint32_t at = 0; at < buffers; ++at) {
    uint64_t size = 0;
    const std::byte* memory = part(at, size);
    joined->insert(joined->end(), memory, memory + size);
  }
  input.bytes = *joined, input.owner = joined;
  return input;
}

TRITONSERVER_Error_Code code_of(obelisk::Outcome outcome) {
  switch (outcome) {
    case obelisk::Outcome::kBadRequest:
      return TRITONSERVER_ERROR_INVALID_ARG;
    case obelisk::Outcome::kNotFound:
    case obelisk::Outcome::kNotReady:
    case obelisk::Outcome::kRejected:
    case obelisk::Outcome::kLate:
      return TRITONSERVER_ERROR_UNAVAILABLE;
    case obelisk::Outcome::kCancelled:
      return TRITONSERVER_ERROR_CANCELLED;
    default:
      return TRITONSERVER_ERROR_INTERNAL;
  }
}

void write(TRITONBACKEND_Response* response, const std::vector<std::string>& wanted,
           const obelisk::Response& answer) {
  for (const obelisk::Port& port : answer.outputs()) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), port.name) == wanted.end())
      continue;
    const auto known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const Types& one) { return one.ours == port.element; });
    if (known == std::end(kTypes))
      throw Refused{error(TRITONSERVER_ERROR_UNSUPPORTED,
                          "output '" + port.name + "' is of a type that Triton has not")};
    const auto bytes = answer.output_bytes(port.name);
    TRITONBACKEND_Output* output = nullptr;
    void* memory = nullptr;
    TRITONSERVER_MemoryType kind = TRITONSERVER_MEMORY_CPU;
    int64_t device = 0;
    must(TRITONBACKEND_ResponseOutput(response, &output, port.name.c_str(), known->theirs,
                                      port.shape.data(), static_cast<uint32_t>(port.shape.size())));
    must(TRITONBACKEND_OutputBuffer(output, &memory, bytes.size(), &kind, &device));
    if (kind == TRITONSERVER_MEMORY_GPU)
      throw Refused{error(TRITONSERVER_ERROR_UNSUPPORTED,
                          "output '" + port.name + "' is wanted in the memory of a GPU")};
    if (!bytes.empty()) std::memcpy(memory, bytes.data(), bytes.size());
  }
}

/// Answers and gives the request back, whatever happens on the way.
void finish(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response,
            TRITONSERVER_Error* failed) {
  if (response) {
    TRITONSERVER_Error* unsent =
        TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, failed);
    if (unsent) TRITONSERVER_ErrorDelete(unsent);
  }
  if (failed) TRITONSERVER_ErrorDelete(failed);
  TRITONSERVER_Error* kept =
      TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL);
  if (kept) TRITONSERVER_ErrorDelete(kept);
}

void execute(const Model& model, TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = nullptr;
  std::vector<obelisk::Input> inputs;
  std::vector<std::string> wanted;
  obelisk::SubmitOptions options;
  TRITONSERVER_Error* failed = guarded([&] {
    must(TRITONBACKEND_ResponseNew(&response, request));
    uint32_t count = 0;
    must(TRITONBACKEND_RequestInputCount(request, &count));
    for (uint32_t at = 0; at < count; ++at) {
      TRITONBACKEND_Input* input = nullptr;
      must(TRITONBACKEND_RequestInputByIndex(request, at, &input));
      inputs.push_back(read(input));
    }
    must(TRITONBACKEND_RequestOutputCount(request, &count));
    for (uint32_t at = 0; at < count; ++at) {
      const char* name = nullptr;
      must(TRITONBACKEND_RequestOutputName(request, at, &name));
      wanted.push_back(name);
    }
    uint64_t timeout = 0;
    must(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout));
    if (timeout > 0) options.deadline = std::chrono::microseconds(timeout);
    const char* id = nullptr;
    must(TRITONBACKEND_RequestId(request, &id));
    options.id = id ? id : "";
  });
  if (failed) return finish(request, response, failed);
  auto done = [request, response, wanted = std::move(wanted)](const obelisk::Response& answer) {
    finish(request, response,
           answer.ok() ? guarded([&] { write(response, wanted, answer); })
                       : error(code_of(answer.outcome()), answer.error()));
  };
  model.server->submit(model.name, std::move(inputs), options, std::move(done));
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend*) {
  return guarded([] {
    uint32_t major = 0, minor = 0;
    must(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != 1)
      throw Refused{error(TRITONSERVER_ERROR_UNSUPPORTED,
                          "this backend is of interface 1, Triton of " + std::to_string(major))};
  });
}

EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* triton) {
  return guarded([&] {
    auto model = load(triton);
    must(TRITONBACKEND_ModelSetState(triton, model.get()));
    (void)model.release();
  });
}

EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* triton) {
  return guarded([&] {
    void* state = nullptr;
    must(TRITONBACKEND_ModelState(triton, &state));
    const std::unique_ptr<Model> model(static_cast<Model*>(state));
    if (model) model->server->remove(model->name);
  });
}

EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  TRITONBACKEND_Model* triton = nullptr;
  void* state = nullptr;
  TRITONSERVER_Error* failed = guarded([&] {
    must(TRITONBACKEND_ModelInstanceModel(instance, &triton));
    must(TRITONBACKEND_ModelState(triton, &state));
  });
  if (failed) return failed;  // the requests are Triton's still
  for (uint32_t at = 0; at < count; ++at) execute(*static_cast<const Model*>(state), requests[at]);
  return nullptr;
}
