// Whether a body goes in vectors, in which of the four ways, and how wide: V, R, U and the lanes of
// a row.
#include <algorithm>

#include "codegen/expressions.h"
#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

bool VectorEmitter::plan() {
  const size_t dims = nest_.dims.size();
  if (static_cast<size_t>(nest_.rows) >= dims) return false;
  across_ = nest_.lanes_in_rows;
  if (across_ && job_.anchored) return false;
  lane_ = across_ ? nest_.rows - 1 : static_cast<int>(dims) - 1;
  columns_ = nest_.column_count();
  if (columns_ == 0 || nest_.row_count() == 0 || nest_.row_count() >= INT32_MAX ||
      columns_ >= INT32_MAX)
    return false;
  for (graph::ValueId v : body_.operands)
    if (bits(job_.graph.type(v).dtype) < 8) return false;
  index_nest(nest_, dim_of_, load_access_, store_access_);
  flat_ = !across_;
  for (const Step& step : body_.steps)
    if (step.kind != StepKind::kStore) flat_ = false;
  if (flat_ && dims - nest_.rows != 1) return false;
  if (!flat_ && !across_ && nest_.cut_columns) return false;
  find_loads();
  for (const Load& load :
       loads_)  // where a read depends on what is computed here, it is made when that is known
    if (exprs_[load.expr].slot < stitch::kTileSlot && (load.varies & (kByPass | kByTile)))
      return false;
  transposes_ =
      flat_ && !job_.anchored && nest_.rows > 0 &&
      nest_.dims[nest_.rows - 1].extent >= kFewestTransposed && columns_ >= kFewestTransposed &&
      std::any_of(loads_.begin(), loads_.end(), [&](const Load& load) { return turns(load); });
  // The widest vector whose loads are whole ones, unless lanes would stand idle; of those that
  // cost the same in a kernel of one product, which waits for its slowest thread, the one that
  // leaves a thread the fewest elements.
  int64_t best = 0, fewest = 0;
  for (int64_t v : {8, 4, 2, 1}) {
    if (!divides(v)) continue;
    const int64_t vectors = across_ ? job_.tile_rows / v
                            : flat_ ? job_.tile_rows * (wide() / v)
                                    : columns_ / v;
    const int64_t lanes = across_ ? kThreads / slices() : flat_ ? kThreads : lanes_of(vectors);
    // A row on few lanes leaves room for others beside it.
    const int64_t cost =
        (vectors + lanes - 1) / lanes * (4 + v) * (flat_ || across_ ? kWarp : lanes);
    const int64_t most = (vectors + lanes - 1) / lanes * v;  // elements of a thread
    if (best == 0 || cost < best || (cost == best && !job_.begin.empty() && most < fewest))
      best = cost, fewest = most, v_ = v;
  }
  if (across_) {
    // As many columns at once as fit: their loads are in flight together.
    const int64_t here = (columns_ + slices() - 1) / slices();
    const int64_t most = std::clamp<int64_t>(kColumnRegisters / std::max<int64_t>(registers(1), 1),
                                             1, kMostColumnsAtOnce);
    rows_text_ = "1", units_text_ = fmt::format("{}", std::min(here, most));
    plan_slots_across(here);
    return registers(1) <= kMostRegistersOfRow;
  }
  if (transposes_) return true;
  if (flat_) {
    vectors_ = wide() / v_;
    const int64_t points =
        std::max<int64_t>((job_.tile_rows * vectors_ + kThreads - 1) / kThreads, 1);
    const int64_t words = std::max<int64_t>(registers(1) + index_words(), 1);
    const int64_t most = std::max<int64_t>(budget() / words, 1);
    if (plan_slots(points)) return true;
    overlaps_ = most < points && !job_.anchored && !job_.grid;
    const int64_t batch = std::clamp<int64_t>(overlaps_ ? most / 2 : most, 1, points);
    batches_ = (points + batch - 1) / batch, points_ = points, words_ = batch * registers(1);
    const int64_t even = (points + batches_ - 1) / batches_;
    rows_text_ =
        fmt::format("OBK_POINTS({}, {})", even,
                    flies_ahead() ? std::max<int64_t>(job_.tile_rows * vectors_, 1) : batch);
    units_text_ = "1";
    if (!flies_ahead() && keep_columns()) return true;
    return registers(1) <= kMostRegistersOfRow;
  }
  vectors_ = columns_ / v_;
  // A warp a row or a part of one, or all threads where it is long.
  lanes_ = lanes_of(vectors_);
  if (registers((vectors_ + kWarp - 1) / kWarp) > kMostRegisters || vectors_ > kMostVectorsOfWarp)
    lanes_ = kThreads;
  const int64_t units = (vectors_ + lanes_ - 1) / lanes_;
  if ((lanes_ == kThreads ? held_at_once(units) : registers(units)) > kMostRegistersOfRow)
    return false;
  const int64_t groups = kThreads / lanes_,
                all = std::max<int64_t>((job_.tile_rows + groups - 1) / groups, 1);  // of a group
  const int64_t most = std::clamp<int64_t>(budget() / std::max<int64_t>(registers(units), 1), 1,
                                           lanes_ == kThreads ? 4 : kMostRegisters);
  if (plan_slots(all)) return true;
  overlaps_ =
      most < all && 2 * registers(units) <= kMostRegistersOfRow && !job_.anchored && !job_.grid;
  const int64_t rows = std::clamp<int64_t>(overlaps_ ? most / 2 : most, 1, all);
  rows_text_ = fmt::format("{}", rows),
  words_ = rows * (lanes_ == kThreads ? held_at_once(units) : registers(units));
  units_text_ = fmt::format("OBK_UNITS({}, OBK_LANES_OF({}))", vectors_, lanes_);
  return true;
}

/// An epilogue of a product's own kernel that reads what varies with columns alone (a bias): where
/// threads go down rows and keep their columns they load it once. Threads that a row of vectors
/// does not divide stand idle, so that it may take more steps; what is saved has to be worth them.
bool VectorEmitter::keep_columns() {
  // Instructions that an SM issues in the time that a vector's loads from shared memory and its
  // store take, and in that of a word of a 16-byte load. Estimates: an SM issues four a clock, and
  // loads or stores 128 bytes.
  constexpr int64_t kMoved = 80, kWord = 4;
  if (!job_.anchored || job_.grid || job_.begin.empty() || job_.may_begin_late || overlaps_ ||
      vectors_ > kThreads)
    return false;
  const int64_t at_once = kThreads / vectors_, steps = (job_.tile_rows + at_once - 1) / at_once;
  int64_t vector = kMoved;
  for (const auto& [id, varies] : varies_)
    if ((varies & kByElement) && exprs_[id].scalar != Scalar::kLoad) vector += v_;
  if (column_registers() == 0 || steps * vector > points_ * (vector + column_registers() * kWord))
    return false;
  flat_ = false, keeps_columns_ = true, lanes_ = vectors_, points_ = steps;
  const int64_t most =
      std::max<int64_t>((budget() - column_registers()) / std::max<int64_t>(registers(1), 1), 1);
  batches_ = (steps + most - 1) / most;
  const int64_t batch = (steps + batches_ - 1) / batches_;
  words_ = batch * registers(1);
  rows_text_ = fmt::format("OBK_POINTS({}, {})", batch,
                           flies_ahead() ? std::max<int64_t>(job_.tile_rows, 1) : batch);
  units_text_ = fmt::format("OBK_UNITS({0}, OBK_LANES_OF({0}))", vectors_);
  return true;
}

/// Lanes of a row; of a short one a power of two, so that parts join by exchanges.
int64_t VectorEmitter::lanes_of(int64_t vectors) const {
  int64_t lanes =
      job_.shares_rows && columns_ > kLongRow && nest_.row_count() <= kFewRows && vectors > kWarp
          ? kThreads
          : 1;
  while (lanes < vectors && lanes < kWarp) lanes *= 2;
  return lanes;
}

bool VectorEmitter::divides(int64_t v) const {
  if (nest_.dims[lane_].extent % v != 0) return false;
  if (v > 1 && v * narrowest() > kLoadBytes)
    return false;  // lanes that are neighbours read neighbouring bytes
  if (flat_ && wide() % v != 0) return false;
  if (across_ && job_.tile_rows % v != 0) return false;
  for (const Load& load : loads_) {
    if ((load.varies & kByElement) && v * byte_size(load.storage, 1) > 64) return false;
    if (!load.guarded || packs(load, v)) continue;
    for (int64_t fewer = v / 2; fewer > 1; fewer /= 2)  // shorter packs are better than none
      if (packs(load, fewer)) return false;
  }
  for (const auto& [s, access] : store_access_) {
    const DType dtype = job_.graph.type(body_.operands[body_.steps[s].slot]).dtype;
    if (v * byte_size(dtype, 1) > 32 || (job_.gives_to_all(body_.steps[s]) &&
                                         (v * byte_size(dtype, 1) < 4 || !store_packs(*access, v))))
      return false;
  }
  if (transposes_) {
    for (const auto& [s, access] : store_access_)
      if (!store_packs(*access, v)) return v == 1;
    return v <= 4;
  }
  // One vector is worth it only if most of what is touched comes in whole packs.
  if (v > 1) {
    int whole = 0, broken = 0;
    for (const Load& load : loads_)
      if (load.varies & kByElement) (packs(load, v) ? whole : broken) += 1;
    for (const auto& [s, access] : store_access_)
      if (!body_.steps[s].per_row || across_) (store_packs(*access, v) ? whole : broken) += 1;
    if (whole == 0) return false;
  }
  return true;
}

/// Bytes of an element of the narrowest operand that vectors run along.
int64_t VectorEmitter::narrowest() const {
  int64_t bytes = 16;
  for (const Load& load : loads_)
    if ((load.varies & kByElement) && !(load.varies & kByTile))
      bytes = std::min(bytes, byte_size(load.storage, 1));
  for (const auto& [s, access] : store_access_)
    bytes =
        std::min(bytes, byte_size(job_.graph.type(body_.operands[body_.steps[s].slot]).dtype, 1));
  return bytes;
}

/// A read that jumps from column to column and not from row to row.
bool VectorEmitter::turns(const Load& load) const {
  const Expr& expr = exprs_[load.expr];
  if (expr.slot >= stitch::kRowSlot || expr.args[0] != kNoExpr) return false;
  const Access& access = *load_access_.at(load.expr);
  return access.affine && access.strides[lane_] > 1 && access.strides[nest_.rows - 1] == 1 &&
         byte_size(load.storage, 1) <= 4;
}

}  // namespace obelisk::codegen
