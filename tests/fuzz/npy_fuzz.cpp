// The reader of NumPy arrays. The first byte chooses which type is wanted, so that conversions are
// reached.
#include "base/base.h"
#include "fuzz/fuzz.h"

using namespace obelisk;

FUZZ_TARGET(npy) {
  if (bytes.empty()) return;
  const int choice = static_cast<int>(bytes[0]) % (kDTypes + 1);
  std::optional<DType> as;
  if (choice < kDTypes) as = static_cast<DType>(choice);
  const Result<Tensor> first = parse_npy(bytes.subspan(1), as);
  if (!first.ok()) return;
  CHECK(first->bytes() <= static_cast<int64_t>(bytes.size()), "{}", to_string(first->type()));
  const std::string written = npy_bytes(*first);
  const Result<Tensor> second =
      parse_npy(std::as_bytes(std::span(written.data(), written.size())), first->dtype());
  CHECK(second.ok() && second->type() == first->type(), "{}", to_string(first->type()));
  for (int64_t k = 0; k < first->count(); ++k) {
    CHECK(first->get_int(k) == second->get_int(k), "element {} of {}", k, to_string(first->type()));
  }
}
