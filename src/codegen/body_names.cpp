// What names a body gives its parameters, constants, operands and coordinates.
#include "codegen/body_emitter.h"
#include "codegen/scalars.h"

namespace obelisk::codegen {

std::string BodyEmitter::param(int64_t value) {
  const std::string name = fmt::format("p{}", param_names_++);
  if (tiles_.vectors) {
    top_ += fmt::format("  constexpr int64_t {} = {};\n", name,
                        value == INT64_MIN ? "INT64_MIN" : std::to_string(value));
    return name;
  }
  top_ += fmt::format("  const int64_t {} = p[{}];\n", name, params_.size());
  params_.push_back(value);
  return name;
}

std::string BodyEmitter::var(int dim) const {
  return fmt::format("{}{}", dim < nest_.rows ? "i" : "j", dim);
}

const std::string& BodyEmitter::extent(int dim) {
  auto [it, fresh] = extent_.try_emplace(dim);
  if (fresh) it->second = param(nest_.dims[dim].extent);
  return it->second;
}

std::string BodyEmitter::pointer(int operand, bool store) {
  auto [it, fresh] = pointer_.try_emplace(operand);
  if (fresh) {
    const DType dtype = graph_.type(body_.operands[operand]).dtype;
    it->second = fmt::format("x{}", operand);
    top_ += fmt::format("  {0}{1}* __restrict x{2} = ({0}{1}*)x[{3}];\n", store ? "" : "const ",
                        storage_name(dtype), operand, operand);
  }
  return it->second;
}

std::string BodyEmitter::stride(const Access& access, size_t dim) {
  std::string& name = stride_[{&access, dim}];
  return name.empty() ? name = param(access.strides[dim]) : name;
}

/// Decodes the linear row `from` into the row coordinates; in lane mode the innermost one is left
/// to the lanes.
std::string BodyEmitter::decode(const std::string& from, const std::string& indent, bool all) {
  std::string text = fmt::format("{}int64_t q = {};\n", indent, from);
  for (int d = nest_.rows - 1; d >= 0; --d) {
    const bool lanes = !all && d == lane_;
    const std::string name = lanes ? "lane0" : var(d);
    if (d == 0)
      text += fmt::format("{}const int64_t {} = q;\n", indent, name);
    else
      text += fmt::format("{0}const int64_t {1} = q % {2}; q /= {2};\n", indent, name, extent(d));
    text += fmt::format("{}(void){};\n", indent, name);
  }
  text += indent + "(void)q;\n";
  return text;
}

}  // namespace obelisk::codegen
