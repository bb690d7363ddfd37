/// base/hash.h — 128-bit content hashes (xxHash3): names of bodies, keys of caches, checksums of
/// files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace obelisk {

struct Hash {
  uint64_t high = 0, low = 0;
  auto operator<=>(const Hash&) const = default;
};
Hash hash_bytes(const void* data, size_t size);
inline Hash hash_text(std::string_view text) { return hash_bytes(text.data(), text.size()); }
std::string to_string(const Hash& hash);  // 32 hex digits

}  // namespace obelisk
