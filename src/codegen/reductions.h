/// codegen/reductions.h — how a reduction is spelled: where it begins, how a term enters, how lanes' parts become one.
#pragma once

#include <string>

#include "ops/ops.h"

namespace obelisk::codegen {

/// The type that terms of `dtype` are combined in.
std::string accumulator_name(DType dtype);
/// What combines to nothing: "0", "-INFINITY".
std::string identity_text(ops::Combine combine, DType dtype);
/// The statement that lets `term` enter `accumulator`.
std::string update_text(ops::Combine combine, const std::string& accumulator, const std::string& term, DType dtype);
/// The functor of the dialect that joins two lanes' parts: "Sum", "Largest".
std::string_view join_name(ops::Combine combine);

}  // namespace obelisk::codegen
