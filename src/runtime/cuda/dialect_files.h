/// runtime/cuda/dialect_files.h — the headers that device code includes, as text inside the library
/// (made by cmake/embed.cmake).
#pragma once

namespace obelisk::runtime::cuda {

struct DialectFile {
  const char* name;
  const char* text;
};
extern const DialectFile kDialectFiles[];
extern const int kDialectFileCount;

}  // namespace obelisk::runtime::cuda
