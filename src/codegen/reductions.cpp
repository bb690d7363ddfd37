#include "codegen/reductions.h"

#include "codegen/scalars.h"

namespace obelisk::codegen {

using ops::Combine;

namespace {

std::string limit_literal(DType dtype, bool highest) {
  switch (dtype) {
    case DType::i64:
      return highest ? "INT64_MAX" : "INT64_MIN";
    case DType::i32:
      return highest ? "INT32_MAX" : "INT32_MIN";
    case DType::i16:
      return highest ? "INT16_MAX" : "INT16_MIN";
    case DType::i8:
      return highest ? "INT8_MAX" : "INT8_MIN";
    case DType::u64:
      return highest ? "UINT64_MAX" : "0";
    case DType::u32:
      return highest ? "UINT32_MAX" : "0";
    case DType::u16:
      return highest ? "UINT16_MAX" : "0";
    case DType::u8:
      return highest ? "UINT8_MAX" : "0";
    case DType::b1:
      return highest ? "true" : "false";
    default:
      return highest ? "INFINITY" : "-INFINITY";
  }
}

}  // namespace

std::string accumulator_name(DType dtype) {
  const DType type = ops::compute_type(dtype);
  return type == DType::b1 ? "int" : arithmetic_name(type);
}

std::string identity_text(Combine combine, DType dtype) {
  const DType type = ops::compute_type(dtype);
  switch (combine) {
    case Combine::kNone:
    case Combine::kSum:
    case Combine::kAny:
      return "0";
    case Combine::kProd:
    case Combine::kAll:
      return "1";
    case Combine::kMax:
      return limit_literal(type, false);
    case Combine::kMin:
      return limit_literal(type, true);
  }
  return "0";
}

std::string update_text(Combine combine, const std::string& accumulator, const std::string& term,
                        DType dtype) {
  switch (combine) {
    case Combine::kNone:
      return fmt::format("{} = {};", accumulator, term);
    case Combine::kSum:
      return fmt::format("{} += {};", accumulator, term);
    case Combine::kProd:
      return fmt::format("{} *= {};", accumulator, term);
    case Combine::kMax:
      return fmt::format("{0} = obk::maximum({0}, ({1}){2});", accumulator, accumulator_name(dtype),
                         term);
    case Combine::kMin:
      return fmt::format("{0} = obk::minimum({0}, ({1}){2});", accumulator, accumulator_name(dtype),
                         term);
    case Combine::kAny:
      return fmt::format("{} |= {};", accumulator, term);
    case Combine::kAll:
      return fmt::format("{} &= {};", accumulator, term);
  }
  return "";
}

std::string_view join_name(Combine combine) {
  switch (combine) {
    case Combine::kNone:
      return "First";
    case Combine::kSum:
      return "Sum";
    case Combine::kProd:
      return "Product";
    case Combine::kMax:
      return "Largest";
    case Combine::kMin:
      return "Smallest";
    case Combine::kAny:
      return "Either";
    case Combine::kAll:
      return "Both";
  }
  return "";
}

std::string_view combine_lanes(Combine combine) {
  switch (combine) {
    case Combine::kNone:
      return "OBK_JOIN_ANY_ONE";
    case Combine::kSum:
      return "OBK_JOIN_SUM";
    case Combine::kProd:
      return "OBK_JOIN_PROD";
    case Combine::kMax:
      return "OBK_JOIN_MAX";
    case Combine::kMin:
      return "OBK_JOIN_MIN";
    case Combine::kAny:
      return "OBK_JOIN_OR";
    case Combine::kAll:
      return "OBK_JOIN_AND";
  }
  return "";
}

std::string_view clause_name(Combine combine) {
  switch (combine) {
    case Combine::kNone:
      return "";
    case Combine::kSum:
      return "+";
    case Combine::kProd:
      return "*";
    case Combine::kMax:
      return "obk::obk_max";
    case Combine::kMin:
      return "obk::obk_min";
    case Combine::kAny:
      return "|";
    case Combine::kAll:
      return "&";
  }
  return "";
}

}  // namespace obelisk::codegen
