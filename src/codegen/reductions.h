/// codegen/reductions.h — how a reduction is spelled: where it begins, how a term enters, how
/// lanes' parts become one.
#pragma once

#include <string>

#include "ops/ops.h"

namespace obelisk::codegen {

/// The type that terms of `dtype` are combined in.
std::string accumulator_name(DType dtype);
/// What combines to nothing: "0", "-INFINITY".
std::string identity_text(ops::Combine combine, DType dtype);
/// The statement that lets `term` enter `accumulator`.
std::string update_text(ops::Combine combine, const std::string& accumulator,
                        const std::string& term, DType dtype);
/// The functor of the dialect that joins two lanes' parts: "Sum", "Largest".
std::string_view join_name(ops::Combine combine);
/// The macro of the dialect that joins the lanes' parts (nothing on a core, where the loop has done
/// it).
std::string_view combine_lanes(ops::Combine combine);
/// The reduction in a clause of a vector loop on a core: "+", or empty where it needs none.
std::string_view clause_name(ops::Combine combine);

}  // namespace obelisk::codegen
