/// base/protobuf.h — messages of Protocol Buffers, written field by field without generated code.
#pragma once

#include <protozero/pbf_writer.hpp>
#include <string>

namespace obelisk {

/// The bytes of a message whose fields `fill` writes to a protozero::pbf_writer.
template <typename Fill>
std::string message(Fill fill) {
  std::string bytes;
  protozero::pbf_writer out(bytes);
  fill(out);
  return bytes;
}

}  // namespace obelisk
