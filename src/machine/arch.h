/// machine/arch.h — GPU architectures as numbers: never compared as text, where "sm_100a" comes
/// before "sm_90a".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace obelisk::machine {

/// sm_90a is {9, 0, 'a'}, sm_120 {12, 0}.
struct Arch {
  int major = 0, minor = 0;
  char suffix =
      0;  // 'a': code may use what is of this architecture alone; 'f': of its family; 0: neither
  bool operator==(const Arch&) const = default;
};

/// Nothing where the text names no architecture.
std::optional<Arch> parse_arch(std::string_view name);
std::string to_string(const Arch& arch);

/// Whether a GPU, whose own architecture has the suffix 'a' where there is one, runs machine code
/// for `code`: that of its own architecture, and plain code for no later minor version of its major
/// one.
bool runs(const Arch& gpu, const Arch& code);

/// What an architecture has beside what all have (tensor cores with mma.sync, cp.async, cooperative
/// launches).
struct Features {
  bool tma =
      false;  // bulk and tensor copies to shared memory, with mbarriers that count their bytes
  bool wgmma = false;     // matrix products by warpgroups
  bool clusters = false;  // CTAs that read one another's shared memory
  bool pdl = false;  // programmatic dependent launch: a kernel begins before the one before it ends
  bool operator==(const Features&) const = default;
};

}  // namespace obelisk::machine
