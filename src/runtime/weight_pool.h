/// runtime/weight_pool.h — weights that several programs have in common, kept once: those of one
/// network at several batches.
///
/// Equal bytes of equal type are one tensor, whoever made them (the model's file, a pass that
/// folded constants), and one packed form of it serves every program with the same recipe.
/// Any number of threads may ask at once. A tensor stays as long as the pool or a program has it.
#pragma once

#include <map>
#include <mutex>
#include <tuple>

#include "runtime/packing.h"

namespace obelisk::runtime {

class WeightPool {
 public:
  /// The tensor, or an equal one that is here already.
  Tensor share(const Tensor& tensor);
  /// pack() of it, or what an earlier call gave.
  Tensor packed(const kernels::TileLibrary& tiles, const PackRecipe& recipe, const Tensor& source);

 private:
  using Key = std::tuple<Hash, DType, Shape>;
  static Key key_of(const Tensor& tensor);
  std::mutex mutex_;
  std::map<Key, Tensor> shared_;
  std::map<std::tuple<Key, PackRecipe, std::string>, Tensor>
      packed_;  // by source, recipe and tile library
};

}  // namespace obelisk::runtime
