#include "verify/rows.h"

namespace obelisk::verify {

Tensor rows_of(const Tensor& tensor, const Rows& rows) {
  if (rows.all()) return tensor;
  Type type = tensor.type();
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < type.shape.size(); ++d)
    (d < rows.dim ? outer : inner) *= d == rows.dim ? 1 : type.shape[d];
  const auto taken = static_cast<int64_t>(rows.at.size());
  type.shape[rows.dim] = taken;
  Tensor some = Tensor::allocate(type);
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t row = 0; row < taken; ++row)
      for (int64_t k = 0; k < inner; ++k) {
        const int64_t to = (o * taken + row) * inner + k;
        const int64_t from = (o * rows.of + rows.at[static_cast<size_t>(row)]) * inner + k;
        if (is_float(type.dtype))
          some.set_double(to, tensor.get_double(from));
        else
          some.set_int(to, tensor.get_int(from));
      }
  return some;
}

std::string Reference::text(const Graph& graph) const {
  if (!why_not.empty()) return "";
  std::string some;
  bool all = true;
  for (size_t k = 0; k < rows.size(); ++k) {
    if (rows[k].all()) continue;
    all = false;
    some += fmt::format("{}{} of {} rows of '{}'", some.empty() ? "" : ", ", rows[k].at.size(),
                        rows[k].of, graph.output_names()[k]);
  }
  return all ? "every row" : some;
}

}  // namespace obelisk::verify
