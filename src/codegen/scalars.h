/// codegen/scalars.h — scalar expressions as C++ text of the CPU dialect.
#pragma once

#include <string>

#include "ops/ops.h"

namespace obelisk::codegen {

/// The C++ name of a storage type ("obk::f16") and of the type its arithmetic happens in ("float").
std::string storage_name(DType dtype);
std::string arithmetic_name(DType dtype);
/// The element type of a tile, as its text names it; `type` by the numbers of ObkType.
std::string tile_type(int32_t type);

/// A literal of a floating type, exact ("0x1.8p+1f", "INFINITY").
std::string real_literal(DType dtype, double value);
/// A constant of any type.
std::string constant_text(const ops::Expr& expr);

/// The text of a non-leaf expression over its arguments' texts. `narrow`: 64-bit integers are
/// computed in an int, which holds them and the result.
std::string scalar_text(const ops::Exprs& exprs, const ops::Expr& expr, const std::string args[3],
                        bool narrow = false);

}  // namespace obelisk::codegen
