/// serve/door/wire_types.h — element types under the protocol's names, and their numbers as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/base.h"

namespace obelisk::serve::door {

/// "FP32". Types that the protocol has no name for get one of their own ("FP8_E4M3FN").
std::string_view wire_name(DType dtype);
std::optional<DType> parse_wire_name(std::string_view name);
/// "TYPE_FP32", and the number of inference.DataType, of model configurations.
std::string config_name(DType dtype);
int config_number(DType dtype);

/// The elements as JSON numbers (true and false of BOOL), with commas between; NaN, Infinity and
/// -Infinity as Python's reader takes them.
void write_numbers(std::string& out, DType dtype, const std::byte* data, int64_t count);

/// Bytes that are no element of their type: a BOOL that is neither 0 nor 1.
bool valid_elements(DType dtype, const std::byte* data, size_t bytes);

}  // namespace obelisk::serve::door
