/// serve/door/messages.h — the messages of inference.GRPCInferenceService, read and written without
/// generated code.
///
/// Field numbers are facts of the protocol's grpc_service.proto and model_config.proto; tests send
/// each message with a stock client. Errors  kBadRequest for what is no message; what is read may
/// be hostile.
#pragma once

#include "serve/door/infer.h"
#include "serve/door/service.h"

namespace obelisk::serve::door {

/// Where the first tensor's bytes begin in a ModelInferRequest, as far as its first piece tells; 0:
/// unknown.
size_t first_tensor_offset(std::string_view piece);
Maybe<Call> read_infer(std::shared_ptr<Received> received, const SharedMemory& memory);

/// A response in pieces: text that was written, and tensors where they lie, in turns.
struct Pieces {
  std::vector<std::string> texts;  // one more than tensors
  std::vector<std::span<const std::byte>> tensors;
};
Maybe<Pieces> write_infer(const Call& call, const Answer& answer, const SharedMemory& memory);
/// ModelStreamInferResponse around a response, or with an error.
Pieces in_stream(Pieces response);
Pieces stream_error(const std::string& message);

/// The short messages: what a method's request says, and its response.
struct Named {
  std::string name, version;
};
Maybe<Named> read_named(std::string_view message);
Maybe<bool> read_index_ready(std::string_view message);
struct LoadRequest {
  std::string model;
  bool has_config = false;
};
Maybe<LoadRequest> read_load(std::string_view message);
Maybe<SharedMemory::Status> read_region(std::string_view message);
Maybe<LogSettings> read_log_settings(std::string_view message, LogSettings settings);
Maybe<bool> read_changes_trace(std::string_view message);

std::string write_bool(bool value);                                       // field 1: live, ready
enum class HealthStatus { kServing = 1, kNotServing = 2, kUnknown = 3 };  // grpc.health.v1
std::string write_health(HealthStatus status);
std::string write_server_metadata(const std::string& version);
std::string write_metadata(const ModelInfo& info);
std::string write_config(const ModelInfo& info);
std::string write_statistics(const std::vector<ModelInfo>& models);
std::string write_index(const std::vector<Service::IndexEntry>& entries);
std::string write_regions(const std::vector<SharedMemory::Status>& regions);
std::string write_log_settings(const LogSettings& settings);
std::string write_trace_settings();

}  // namespace obelisk::serve::door
