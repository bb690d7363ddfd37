/// runtime/obk_format.h — what the writer and the reader of a compiled file agree on (obk.h draws
/// it).
#pragma once

#include "runtime/obk.h"
#include "runtime/packing.h"

namespace obelisk::runtime::obk_format {

inline constexpr char kMagic[4] = {'O', 'B', 'K', '\x1a'};
inline constexpr uint32_t kVersion = kObkFormat;
enum Section : uint32_t { kTables, kGraph, kBodies, kObjects, kWeights, kSections };
inline constexpr size_t kHeaderBytes = 24, kEntryBytes = 40,
                        kDirectory = kHeaderBytes + kSections * kEntryBytes,
                        kFirst = kDirectory + 16;

/// Where a weight lies in its section.
struct Stored {
  int64_t offset = 0, bytes = 0;
  Hash hash;
};

inline constexpr int64_t PackRecipe::*kRecipeNumbers[] = {
    &PackRecipe::n,      &PackRecipe::k,       &PackRecipe::row,    &PackRecipe::column,
    &PackRecipe::offset, &PackRecipe::outputs, &PackRecipe::inputs, &PackRecipe::height,
    &PackRecipe::width,  &PackRecipe::groups,  &PackRecipe::tile,   &PackRecipe::half};

}  // namespace obelisk::runtime::obk_format
