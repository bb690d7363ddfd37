#include "runtime/weight_pool.h"

namespace obelisk::runtime {

WeightPool::Key WeightPool::key_of(const Tensor& tensor) {
  return {hash_bytes(tensor.data(), static_cast<size_t>(tensor.bytes())), tensor.dtype(),
          tensor.shape()};
}

Tensor WeightPool::share(const Tensor& tensor) {
  if (tensor.empty()) return tensor;
  Key key = key_of(tensor);
  std::lock_guard lock(mutex_);
  return shared_.try_emplace(std::move(key), tensor).first->second;
}

Tensor WeightPool::packed(const kernels::TileLibrary& tiles, const PackRecipe& recipe,
                          const Tensor& source) {
  std::tuple<Key, PackRecipe, std::string> key{key_of(source), recipe, tiles.name};
  {
    std::lock_guard lock(mutex_);
    if (const auto found = packed_.find(key); found != packed_.end()) return found->second;
  }
  Tensor made = pack(tiles, recipe, source);
  std::lock_guard lock(mutex_);
  return packed_.try_emplace(std::move(key), std::move(made)).first->second;
}

}  // namespace obelisk::runtime
