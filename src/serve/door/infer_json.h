/// serve/door/infer_json.h — inference calls over HTTP: JSON, with tensors in it or in bytes behind
/// it.
#pragma once

#include "serve/door/http.h"
#include "serve/door/infer.h"

namespace obelisk::serve::door {

/// Reads the call whose first `json_bytes` are JSON and whose rest are the tensors that it names.
/// The body must have Block's room behind it.
Maybe<Call> parse_infer(std::shared_ptr<Received> received, size_t json_bytes,
                        const SharedMemory& memory);
/// The body is the only input's bytes.
Maybe<Call> raw_infer(std::shared_ptr<Received> received, const ModelInfo& model);

HttpReply infer_reply(const Call& call, const Answer& answer, const SharedMemory& memory);

}  // namespace obelisk::serve::door
