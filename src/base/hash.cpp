#include "base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace obelisk {

Hash hash_bytes(const void* data, size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(data, size);
  return {.high = hash.high64, .low = hash.low64};
}

std::string to_string(const Hash& hash) {
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

}  // namespace obelisk
