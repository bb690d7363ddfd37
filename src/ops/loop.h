/// ops/loop.h — an op as loops: what fusion composes and code generation prints.
///
/// A Loop says: for each point of `domain` (the output's coordinates, then the reduced ones) the
/// scalar `body`; combined over the reduced coordinates by `combine`; and `finish` of that is the
/// output's element. Example, mean over the last axis of x[4,7]: domain [4,7], parallel 1, body
/// load(x; c0, c1), combine sum, finish mul(acc, 1/7).
///
/// One pool of expressions serves index arithmetic and values alike: index expressions are i64,
/// coordinates are atoms, and a load carries one index expression per dimension of what it reads.
/// So that inlining a producer into a consumer is substitution of coordinates, and an affine access
/// is found by looking at the expressions (affine()), not by a second notation.
///
/// Types: arithmetic happens in the *compute type*: f32 for f32, f16, bf16 and narrower floats; f64
/// for f64; integers in their own width with wrap-around (i4 and i2 in i8, u4 and u2 in u8); b1 for
/// booleans. A load converts to the compute type, a store back. `cast` to a narrow float rounds to
/// that type's grid and stays in the compute type.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/base.h"

namespace obelisk::ops {

using obelisk::to_string;  // shapes and types print through the same name

using ExprId = int32_t;
inline constexpr ExprId kNoExpr = -1;

enum class Scalar : uint8_t {
  // leaves
  kCoord,  // coordinate `slot` of the domain, i64
  kConst,  // `integer` for integer and boolean types, `real` for floats
  kLoad,   // input `slot` at coords; args[0] guard (b1, may be none), args[1] the value where the
           // guard is false
  kAcc,    // in `finish` only: the combined value
  // unary
  kNeg,
  kAbs,
  kSign,
  kFloor,
  kCeil,
  kRound /* half to even */,
  kTrunc,
  kSqrt,
  kRsqrt,
  kRecip,
  kExp,
  kLog,
  kLog1p,
  kExpm1,
  kErf,
  kSin,
  kCos,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kTanh,
  kAsinh,
  kAcosh,
  kAtanh,
  kSigmoid,
  kNot /* b1 */,
  kBitNot,
  kIsNan,
  kIsInf,
  kCast,  // to `dtype`; float to int truncates toward zero, out of range is unspecified as in C++
          // but must not trap
  kCastSat,  // to a narrow float, saturating
  // binary: both arguments and the result share one type, comparisons give b1
  kAdd,
  kSub,
  kMul,
  kDiv /* floats IEEE; integers truncate, x/0 = 0 */,
  kMod /* sign of the divisor */,
  kFmod /* sign of the dividend */,
  kPow,
  kMin,
  kMax /* NaN wins */,
  kAtan2,
  kLt,
  kLe,
  kEq,
  kAnd,
  kOr,
  kXor /* b1 */,
  kBitAnd,
  kBitOr,
  kBitXor,
  kShl,
  kShr,
  // ternary
  kSelect,  // args[0] b1 ? args[1] : args[2]
};
std::string_view to_string(Scalar scalar);

struct Expr {
  Scalar scalar;
  DType dtype;  // the compute type of the value; for casts to a narrow float the type whose grid it
                // is rounded to
  int slot = 0;  // kCoord: which coordinate; kLoad: which input
  ExprId args[3] = {kNoExpr, kNoExpr, kNoExpr};
  int64_t integer = 0;              // kConst
  double real = 0;                  // kConst
  std::vector<ExprId> coords = {};  // kLoad: one per dimension of the input
  bool operator==(const Expr&) const = default;
};

/// The compute type of values of a storage type.
DType compute_type(DType dtype);

/// A pool of expressions with hash-consing: equal expressions have equal ids, so a pool is
/// deterministic and comparisons are cheap. Constructors fold constants and apply identities that
/// are exact (x+0 on integers, x*1, double negation, select of equals).
class Exprs {
 public:
  const Expr& operator[](ExprId id) const { return nodes_[id]; }
  int size() const { return static_cast<int>(nodes_.size()); }

  ExprId coord(int slot, int64_t extent);  // extent: the coordinate runs over [0, extent); used to
                                           // simplify div and mod
  ExprId constant(DType dtype, double value);
  ExprId integer(int64_t value);  // i64
  /// `dtype` is the storage type of the input; the value has its compute type.
  ExprId load(int input, DType dtype, std::vector<ExprId> coords, ExprId guard = kNoExpr,
              ExprId otherwise = kNoExpr);
  ExprId acc(DType dtype);
  ExprId unary(Scalar scalar, ExprId x);
  ExprId binary(Scalar scalar, ExprId x, ExprId y);
  ExprId select(ExprId condition, ExprId yes, ExprId no);
  ExprId cast(ExprId x, DType dtype, bool saturate = false);

  // Spelled-out shorthands.
  ExprId add(ExprId x, ExprId y) { return binary(Scalar::kAdd, x, y); }
  ExprId sub(ExprId x, ExprId y) { return binary(Scalar::kSub, x, y); }
  ExprId mul(ExprId x, ExprId y) { return binary(Scalar::kMul, x, y); }
  ExprId div(ExprId x, ExprId y) {
    return binary(Scalar::kDiv, x, y);
  }  // index expressions are never negative where divided
  ExprId mod(ExprId x, ExprId y) { return binary(Scalar::kMod, x, y); }
  ExprId lt(ExprId x, ExprId y) { return binary(Scalar::kLt, x, y); }
  ExprId le(ExprId x, ExprId y) { return binary(Scalar::kLe, x, y); }
  ExprId eq(ExprId x, ExprId y) { return binary(Scalar::kEq, x, y); }
  ExprId both(ExprId x, ExprId y) { return binary(Scalar::kAnd, x, y); }
  ExprId add(ExprId x, int64_t y) { return add(x, integer(y)); }  // index arithmetic
  ExprId mul(ExprId x, int64_t y) { return mul(x, integer(y)); }
  ExprId div(ExprId x, int64_t y) { return div(x, integer(y)); }
  ExprId mod(ExprId x, int64_t y) { return mod(x, integer(y)); }

  /// The inclusive range of an i64 expression where it is known, used by simplification.
  struct Range {
    int64_t low, high;
  };
  std::optional<Range> range(ExprId id) const;

  /// Copies `id` of `other` into this pool, replacing coordinate k by coords[k] and each load
  /// through `load` (which receives the slot, the storage dtype, the already copied coords, guard
  /// and otherwise).
  using LoadFn = std::function<ExprId(int slot, DType dtype, std::vector<ExprId> coords,
                                      ExprId guard, ExprId otherwise)>;
  /// `known` maps ids of `other` to ids here that stand for them (and receives the others as they
  /// are copied). `other` may be this pool: then a copy with substitutions is made.
  using Known = std::unordered_map<ExprId, ExprId>;
  ExprId import(const Exprs& other, ExprId id, std::span<const ExprId> coords, const LoadFn& load,
                ExprId acc = kNoExpr, Known* known = nullptr);

 private:
  ExprId intern(Expr expr);
  ExprId simplify(Expr expr);
  std::vector<Expr> nodes_;
  std::vector<int64_t> extents_;  // by coordinate slot
  std::unordered_multimap<uint64_t, ExprId> index_;
};

/// An index expression as  offset + sum of stride[d] * coordinate d,  where it is one.
struct Affine {
  int64_t offset = 0;
  std::vector<int64_t> strides;  // one per coordinate of the domain
};
std::optional<Affine> affine(const Exprs& exprs, ExprId id, int domain_rank);

enum class Combine : uint8_t { kNone, kSum, kProd, kMax, kMin, kAny, kAll };
double identity(Combine combine, DType dtype);  // 0, 1, -inf or lowest, +inf or highest, ...

struct Loop {
  Exprs exprs;
  Shape domain;      // extents: the output's dimensions, then the reduced ones
  int parallel = 0;  // how many leading coordinates are the output's; the rest are reduced
  ExprId body = kNoExpr;
  Combine combine = Combine::kNone;
  ExprId finish = kNoExpr;  // for reductions: an expression of kAcc; kNoExpr means kAcc itself
};

/// The standard start of a map: loads every input at the output's coordinates by numpy broadcast
/// (absent inputs give kNoExpr).
struct MapStart {
  Loop loop;
  std::vector<ExprId> coords;  // of the output
  std::vector<ExprId> values;  // one per input
};
struct Call;
MapStart start_map(const Call& call, const Shape& output);

/// Interprets a loop, point by point: the executable meaning of a Loop, used by tests and where no
/// compiler exists.
Tensor evaluate(const Loop& loop, const Type& output, std::span<const Tensor* const> inputs);

/// "sum c1 in 7: mul(load0(c0, c1), load0(c0, c1))", for dumps and tests.
std::string to_string(const Loop& loop);

}  // namespace obelisk::ops
