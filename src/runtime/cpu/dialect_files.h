/// runtime/cpu/dialect_files.h — the headers that bodies include, as text inside the library (made
/// by cmake/embed.cmake).
#pragma once

namespace obelisk::runtime::cpu {

struct DialectFile {
  const char* name;
  const char* text;
};
extern const DialectFile kDialectFiles[];
extern const int kDialectFileCount;

}  // namespace obelisk::runtime::cpu
