#include "ort/abi.h"

#include <memory>

namespace obelisk::ort {
namespace {

template <typename Function>
void put(Function& function, const void* entry) {
  function = reinterpret_cast<Function>(const_cast<void*>(entry));
}

}  // namespace

const Api* Api::of(const ApiBase& base) {
  const void* const* table = base.get_api(kVersion);
  if (!table) return nullptr;
  static const Api api = [&] {
    Api made{};
#define ORT_FUNCTION(place, result, name, ...) put(made.name, table[place]);
#define ORT_PROVIDER_FUNCTION(place, result, name, ...)
#include "ort/functions.def"
    const void* const* provider_table = made.GetEpApi();
#define ORT_FUNCTION(place, result, name, ...)
#define ORT_PROVIDER_FUNCTION(place, result, name, ...) put(made.name, provider_table[place]);
#include "ort/functions.def"
    return made;
  }();
  return &api;
}

}  // namespace obelisk::ort
