#include "ops/loop.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/ops.h"
#include "ops/scalar_values.h"

namespace obelisk::ops {
namespace {

constexpr std::string_view kScalarNames[] = {
    "coord",  "const",   "load",   "acc",   "neg",     "abs",   "sign",   "floor", "ceil",
    "round",  "trunc",   "sqrt",   "rsqrt", "recip",   "exp",   "log",    "log1p", "expm1",
    "erf",    "sin",     "cos",    "tan",   "asin",    "acos",  "atan",   "sinh",  "cosh",
    "tanh",   "asinh",   "acosh",  "atanh", "sigmoid", "not",   "bitnot", "isnan", "isinf",
    "cast",   "castsat", "add",    "sub",   "mul",     "div",   "mod",    "fmod",  "pow",
    "min",    "max",     "atan2",  "lt",    "le",      "eq",    "and",    "or",    "xor",
    "bitand", "bitor",   "bitxor", "shl",   "shr",     "select"};
static_assert(std::size(kScalarNames) == static_cast<size_t>(Scalar::kSelect) + 1);

bool is_comparison(Scalar s) { return s == Scalar::kLt || s == Scalar::kLe || s == Scalar::kEq; }
bool is_commutative(Scalar s) {
  switch (s) {
    case Scalar::kAdd:
    case Scalar::kMul:
    case Scalar::kMin:
    case Scalar::kMax:
    case Scalar::kEq:
    case Scalar::kAnd:
    case Scalar::kOr:
    case Scalar::kXor:
    case Scalar::kBitAnd:
    case Scalar::kBitOr:
    case Scalar::kBitXor:
      return true;
    default:
      return false;
  }
}

uint64_t hash_expr(const Expr& expr) {
  uint64_t hash = 0xcbf29ce484222325ull;
  auto mix = [&](uint64_t v) {
    hash = (hash ^ v) * 0x100000001b3ull;
    hash ^= hash >> 29;
  };
  mix(static_cast<uint64_t>(expr.scalar));
  mix(static_cast<uint64_t>(expr.dtype));
  mix(static_cast<uint64_t>(expr.slot));
  for (ExprId arg : expr.args) mix(static_cast<uint64_t>(arg));
  mix(static_cast<uint64_t>(expr.integer));
  uint64_t real_bits;
  static_assert(sizeof real_bits == sizeof expr.real);
  __builtin_memcpy(&real_bits, &expr.real, sizeof real_bits);
  mix(real_bits);
  for (ExprId coord : expr.coords) mix(static_cast<uint64_t>(coord));
  return hash;
}

bool same_bits(double a, double b) { return __builtin_memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

std::string_view to_string(Scalar scalar) { return kScalarNames[static_cast<size_t>(scalar)]; }

DType compute_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f8e4m3fn:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2:
    case DType::f8e5m2fnuz:
    case DType::f8e8m0:
    case DType::f4e2m1:
      return DType::f32;
    case DType::i4:
    case DType::i2:
      return DType::i8;
    case DType::u4:
    case DType::u2:
      return DType::u8;
    default:
      return dtype;
  }
}

ExprId Exprs::intern(Expr expr) {
  const uint64_t hash = hash_expr(expr);
  auto [begin, end] = index_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Expr& known = nodes_[it->second];
    if (same_bits(known.real, expr.real)) {
      Expr a = known, b = expr;
      a.real = b.real = 0;  // NaN constants equal themselves here
      if (a == b) return it->second;
    }
  }
  nodes_.push_back(std::move(expr));
  index_.emplace(hash, static_cast<ExprId>(nodes_.size() - 1));
  return static_cast<ExprId>(nodes_.size() - 1);
}

ExprId Exprs::coord(int slot, int64_t extent) {
  if (static_cast<size_t>(slot) >= extents_.size())
    extents_.resize(slot + 1, std::numeric_limits<int64_t>::max());
  extents_[slot] = extent;
  if (extent == 1) return integer(0);
  return intern({.scalar = Scalar::kCoord, .dtype = DType::i64, .slot = slot});
}

ExprId Exprs::constant(DType dtype, double value) {
  const DType type = compute_type(dtype);
  if (is_float(type))
    return intern({.scalar = Scalar::kConst, .dtype = type, .real = round_to(type, value, false)});
  return intern({.scalar = Scalar::kConst,
                 .dtype = type,
                 .integer = convert({value, 0}, DType::f64, type, false).integer});
}

ExprId Exprs::integer(int64_t value) {
  return intern({.scalar = Scalar::kConst, .dtype = DType::i64, .integer = value});
}

ExprId Exprs::load(int input, DType dtype, std::vector<ExprId> coords, ExprId guard,
                   ExprId otherwise) {
  if (guard != kNoExpr && nodes_[guard].scalar == Scalar::kConst) {
    if (!nodes_[guard].integer) return otherwise;
    guard = otherwise = kNoExpr;
  }
  Expr expr{.scalar = Scalar::kLoad, .dtype = dtype, .slot = input, .coords = std::move(coords)};
  expr.args[0] = guard;
  expr.args[1] = otherwise;
  return intern(std::move(expr));
}

ExprId Exprs::acc(DType dtype) {
  return intern({.scalar = Scalar::kAcc, .dtype = compute_type(dtype)});
}

/// The compute type in which the value of an expression lives.
static DType value_type(const Expr& expr) { return compute_type(expr.dtype); }

ExprId Exprs::unary(Scalar scalar, ExprId x) {
  const Expr& arg = nodes_[x];
  const DType type = value_type(arg);
  const bool predicate =
      scalar == Scalar::kIsNan || scalar == Scalar::kIsInf || scalar == Scalar::kNot;
  Expr expr{.scalar = scalar, .dtype = predicate ? DType::b1 : type};
  expr.args[0] = x;
  return simplify(std::move(expr));
}

ExprId Exprs::binary(Scalar scalar, ExprId x, ExprId y) {
  const DType type = value_type(nodes_[x]);
  CHECK(type == value_type(nodes_[y]), "{} of {} and {}", to_string(scalar), to_string(type),
        to_string(value_type(nodes_[y])));
  Expr expr{.scalar = scalar, .dtype = is_comparison(scalar) ? DType::b1 : type};
  // Constants go right and equal arguments get one order, so that equal expressions meet in the
  // pool. Floating add and mul are commutative too (but for the payload of a NaN).
  if (is_commutative(scalar)) {
    const bool x_const = nodes_[x].scalar == Scalar::kConst,
               y_const = nodes_[y].scalar == Scalar::kConst;
    if ((x_const && !y_const) || (x_const == y_const && y < x)) std::swap(x, y);
  }
  expr.args[0] = x;
  expr.args[1] = y;
  return simplify(std::move(expr));
}

ExprId Exprs::select(ExprId condition, ExprId yes, ExprId no) {
  if (yes == no) return yes;
  if (nodes_[condition].scalar == Scalar::kConst) return nodes_[condition].integer ? yes : no;
  CHECK(value_type(nodes_[condition]) == DType::b1);
  CHECK(value_type(nodes_[yes]) == value_type(nodes_[no]), "select of {} and {}",
        to_string(value_type(nodes_[yes])), to_string(value_type(nodes_[no])));
  Expr expr{.scalar = Scalar::kSelect, .dtype = value_type(nodes_[yes])};
  expr.args[0] = condition;
  expr.args[1] = yes;
  expr.args[2] = no;
  return intern(std::move(expr));
}

ExprId Exprs::cast(ExprId x, DType dtype, bool saturate) {
  const Expr& arg = nodes_[x];
  if (value_type(arg) == dtype && compute_type(dtype) == dtype) return x;
  if (arg.scalar == Scalar::kCast && arg.dtype == dtype) return x;
  // what was stored so is on the grid already
  if (arg.scalar == Scalar::kLoad && arg.dtype == dtype) return x;
  Expr expr{.scalar = saturate ? Scalar::kCastSat : Scalar::kCast, .dtype = dtype};
  expr.args[0] = x;
  if (arg.scalar == Scalar::kConst) {
    const Scalars value = convert({arg.real, arg.integer}, value_type(arg), dtype, saturate);
    Expr folded{.scalar = Scalar::kConst,
                .dtype = compute_type(dtype),
                .integer = value.integer,
                .real = value.real};
    if (!is_float(dtype)) folded.real = 0;
    // A narrow float constant is already rounded; it may be treated as a plain value of the compute
    // type.
    return intern(std::move(folded));
  }
  return intern(std::move(expr));
}

std::optional<Exprs::Range> Exprs::range(ExprId id) const {
  const Expr& expr = nodes_[id];
  if (expr.dtype != DType::i64) return std::nullopt;
  auto of = [&](int arg) { return range(expr.args[arg]); };
  constexpr int64_t kLimit = int64_t{1} << 50;
  auto bounded = [&](int64_t low, int64_t high) -> std::optional<Range> {
    if (low < -kLimit || high > kLimit) return std::nullopt;
    return Range{low, high};
  };
  switch (expr.scalar) {
    case Scalar::kConst:
      return bounded(expr.integer, expr.integer);
    case Scalar::kCoord:
      return bounded(0, std::max<int64_t>(extents_[expr.slot] - 1, 0));
    case Scalar::kAdd: {
      auto a = of(0), b = of(1);
      return a && b ? bounded(a->low + b->low, a->high + b->high) : std::nullopt;
    }
    case Scalar::kSub: {
      auto a = of(0), b = of(1);
      return a && b ? bounded(a->low - b->high, a->high - b->low) : std::nullopt;
    }
    case Scalar::kMul: {
      auto a = of(0), b = of(1);
      if (!a || !b) return std::nullopt;
      __int128 p[] = {(__int128)a->low * b->low, (__int128)a->low * b->high,
                      (__int128)a->high * b->low, (__int128)a->high * b->high};
      auto [low, high] = std::minmax_element(p, p + 4);
      if (*low < -kLimit || *high > kLimit) return std::nullopt;
      return Range{static_cast<int64_t>(*low), static_cast<int64_t>(*high)};
    }
    case Scalar::kDiv: {
      auto a = of(0), b = of(1);
      if (!a || !b || b->low != b->high || b->low <= 0) return std::nullopt;
      return Range{a->low / b->low, a->high / b->low};
    }
    case Scalar::kMod: {
      auto a = of(0), b = of(1);
      if (!b || b->low != b->high || b->low <= 0) return std::nullopt;
      if (a && a->low >= 0 && a->high < b->low) return a;
      return Range{0, b->low - 1};
    }
    case Scalar::kMin: {
      auto a = of(0), b = of(1);
      return a && b ? bounded(std::min(a->low, b->low), std::min(a->high, b->high)) : std::nullopt;
    }
    case Scalar::kMax: {
      auto a = of(0), b = of(1);
      return a && b ? bounded(std::max(a->low, b->low), std::max(a->high, b->high)) : std::nullopt;
    }
    case Scalar::kSelect: {
      auto a = of(1), b = of(2);
      return a && b ? bounded(std::min(a->low, b->low), std::max(a->high, b->high)) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

namespace {

/// A sum of coefficient * atom + constant, the normal form in which index arithmetic is compared.
struct LinearSum {
  std::vector<std::pair<ExprId, int64_t>> terms;  // ordered by atom
  int64_t constant = 0;
};

// As integers at run time, constants of a model among them, sums wrap.
int64_t plus(int64_t x, int64_t y) { return binary_int(Scalar::kAdd, x, y, DType::i64); }
int64_t times(int64_t x, int64_t y) { return binary_int(Scalar::kMul, x, y, DType::i64); }

void add_term(LinearSum& sum, ExprId atom, int64_t coefficient) {
  auto it = std::lower_bound(sum.terms.begin(), sum.terms.end(), atom,
                             [](auto& t, ExprId a) { return t.first < a; });
  if (it != sum.terms.end() && it->first == atom) {
    it->second = plus(it->second, coefficient);
    if (it->second == 0) sum.terms.erase(it);
  } else if (coefficient != 0) {
    sum.terms.insert(it, {atom, coefficient});
  }
}

void flatten(const Exprs& exprs, ExprId id, int64_t scale, LinearSum& sum) {
  const Expr& expr = exprs[id];
  if (expr.scalar == Scalar::kConst) {
    sum.constant = plus(sum.constant, times(scale, expr.integer));
  } else if (expr.scalar == Scalar::kAdd) {
    flatten(exprs, expr.args[0], scale, sum);
    flatten(exprs, expr.args[1], scale, sum);
  } else if (expr.scalar == Scalar::kSub) {
    flatten(exprs, expr.args[0], scale, sum);
    flatten(exprs, expr.args[1], times(scale, -1), sum);
  } else if (expr.scalar == Scalar::kMul && exprs[expr.args[1]].scalar == Scalar::kConst) {
    flatten(exprs, expr.args[0], times(scale, exprs[expr.args[1]].integer), sum);
  } else {
    add_term(sum, id, scale);
  }
}

/// A sum as k * whole + rest: the terms that k divides, and the others.
struct Divided {
  LinearSum whole, rest;
};
Divided divided(const LinearSum& sum, int64_t k) {
  Divided out;
  for (auto [atom, coefficient] : sum.terms)
    if (coefficient % k == 0)
      add_term(out.whole, atom, coefficient / k);
    else
      add_term(out.rest, atom, coefficient);
  out.whole.constant = floor_div(sum.constant, k);
  out.rest.constant = sum.constant - out.whole.constant * k;
  return out;
}

}  // namespace

ExprId Exprs::simplify(Expr expr) {
  const Scalar s = expr.scalar;
  const bool unary = expr.args[1] == kNoExpr;
  const Expr x = nodes_[expr.args[0]];
  const DType type = value_type(x);

  if (unary) {
    if (x.scalar == Scalar::kConst) {
      if (s == Scalar::kIsNan) return constant(DType::b1, is_float(type) && std::isnan(x.real));
      if (s == Scalar::kIsInf) return constant(DType::b1, is_float(type) && std::isinf(x.real));
      if (is_float(type)) return constant(type, unary_real(s, x.real));
      return intern({.scalar = Scalar::kConst,
                     .dtype = expr.dtype,
                     .integer = unary_int(s, x.integer, type)});
    }
    if (s == x.scalar && (s == Scalar::kNeg || s == Scalar::kNot || s == Scalar::kBitNot))
      return x.args[0];
    return intern(std::move(expr));
  }

  const Expr y = nodes_[expr.args[1]];
  if (x.scalar == Scalar::kConst && y.scalar == Scalar::kConst) {
    if (is_comparison(s))
      return constant(DType::b1, compare(s, {x.real, x.integer}, {y.real, y.integer}, type));
    if (is_float(type)) return constant(type, binary_real(s, x.real, y.real));
    return intern({.scalar = Scalar::kConst,
                   .dtype = type,
                   .integer = binary_int(s, x.integer, y.integer, type)});
  }
  if (s == Scalar::kMul && y.scalar == Scalar::kConst &&
      (is_float(type) ? y.real == 1 : y.integer == 1))
    return expr.args[0];
  if (s == Scalar::kDiv && y.scalar == Scalar::kConst &&
      (is_float(type) ? y.real == 1 : y.integer == 1))
    return expr.args[0];
  if (s == Scalar::kPow && is_float(type) && y.scalar == Scalar::kConst) {
    if (y.real == 2) return binary(Scalar::kMul, expr.args[0], expr.args[0]);
    if (y.real == 1) return expr.args[0];
  }
  if (s == Scalar::kAnd && y.scalar == Scalar::kConst)
    return y.integer ? expr.args[0] : expr.args[1];
  if (s == Scalar::kOr && y.scalar == Scalar::kConst)
    return y.integer ? expr.args[1] : expr.args[0];
  if ((s == Scalar::kAnd || s == Scalar::kOr) && expr.args[0] == expr.args[1]) return expr.args[0];
  if (type != DType::i64) return intern(std::move(expr));

  // ---- index arithmetic: sums are kept as a sorted sum of terms, div and mod drop what their
  // ranges allow ----
  if (is_comparison(s)) {
    auto a = range(expr.args[0]), b = range(expr.args[1]);
    if (a && b) {
      if (s == Scalar::kLt && a->high < b->low) return constant(DType::b1, 1);
      if (s == Scalar::kLt && a->low >= b->high) return constant(DType::b1, 0);
      if (s == Scalar::kLe && a->high <= b->low) return constant(DType::b1, 1);
      if (s == Scalar::kLe && a->low > b->high) return constant(DType::b1, 0);
      if (s == Scalar::kEq && (a->high < b->low || b->high < a->low)) return constant(DType::b1, 0);
    }
    return intern(std::move(expr));
  }
  if (s == Scalar::kMul && y.scalar == Scalar::kConst && y.integer == 0) return integer(0);
  if (s == Scalar::kMin || s == Scalar::kMax) {
    auto a = range(expr.args[0]), b = range(expr.args[1]);
    if (a && b && a->high <= b->low) return s == Scalar::kMin ? expr.args[0] : expr.args[1];
    if (a && b && b->high <= a->low) return s == Scalar::kMin ? expr.args[1] : expr.args[0];
    return intern(std::move(expr));
  }

  // a canonical chain: ((a*c + b*d) + e) + constant
  auto rebuild = [&](const LinearSum& sum) -> ExprId {
    ExprId total = kNoExpr;
    for (auto [atom, coefficient] : sum.terms) {
      ExprId term = atom;
      if (coefficient != 1) {
        Expr mul{.scalar = Scalar::kMul, .dtype = DType::i64};
        mul.args[0] = atom;
        mul.args[1] = integer(coefficient);
        term = intern(std::move(mul));
      }
      if (total == kNoExpr) {
        total = term;
        continue;
      }
      Expr add{.scalar = Scalar::kAdd, .dtype = DType::i64};
      add.args[0] = total;
      add.args[1] = term;
      total = intern(std::move(add));
    }
    if (total == kNoExpr) return integer(sum.constant);
    if (sum.constant == 0) return total;
    Expr add{.scalar = Scalar::kAdd, .dtype = DType::i64};
    add.args[0] = total;
    add.args[1] = integer(sum.constant);
    return intern(std::move(add));
  };

  if (s == Scalar::kAdd || s == Scalar::kSub || (s == Scalar::kMul && y.scalar == Scalar::kConst)) {
    LinearSum sum;
    if (s == Scalar::kMul) {
      flatten(*this, expr.args[0], y.integer, sum);
    } else {
      flatten(*this, expr.args[0], 1, sum);
      flatten(*this, expr.args[1], s == Scalar::kSub ? -1 : 1, sum);
    }
    // (e/k)*k + e%k = e  where e is never negative: undoing a reshape.
    bool again = true;
    while (again) {
      again = false;
      for (auto [atom, coefficient] : sum.terms) {
        const Expr mod_expr = nodes_[atom];
        if (mod_expr.scalar != Scalar::kMod || nodes_[mod_expr.args[1]].scalar != Scalar::kConst)
          continue;
        const int64_t k = nodes_[mod_expr.args[1]].integer;
        auto dividend = range(mod_expr.args[0]);
        if (k <= 0 || !dividend || dividend->low < 0) continue;
        const ExprId quotient = div(mod_expr.args[0], k);
        auto it = std::find_if(sum.terms.begin(), sum.terms.end(),
                               [&](auto& t) { return t.first == quotient; });
        if (it == sum.terms.end() || it->second != times(coefficient, k)) continue;
        add_term(sum, quotient, times(times(coefficient, k), -1));
        add_term(sum, atom, times(coefficient, -1));
        flatten(*this, mod_expr.args[0], coefficient, sum);
        again = true;
        break;
      }
    }
    return rebuild(sum);
  }

  if ((s == Scalar::kDiv || s == Scalar::kMod) && y.scalar == Scalar::kConst && y.integer > 0) {
    const int64_t k = y.integer;
    auto all = range(expr.args[0]);
    if (all && all->low >= 0) {
      if (all->high < k) return s == Scalar::kDiv ? integer(0) : expr.args[0];
      LinearSum sum;
      flatten(*this, expr.args[0], 1, sum);
      const auto [whole, rest] = divided(sum, k);
      const ExprId whole_id = rebuild(whole), rest_id = rebuild(rest);
      auto whole_range = range(whole_id), rest_range = range(rest_id);
      // (k*w + r) / k = w + r/k needs w and r not negative, since division truncates.
      if (whole_range && rest_range && whole_range->low >= 0 && rest_range->low >= 0) {
        if (rest_range->high < k) return s == Scalar::kDiv ? whole_id : rest_id;
        if (rest_id != expr.args[0]) {
          return s == Scalar::kDiv ? add(whole_id, div(rest_id, integer(k)))
                                   : mod(rest_id, integer(k));
        }
        // (g*a) / (g*b) = a/b and (g*a) % (g*b) = g*(a % b), where g divides everything.
        int64_t g = k;
        for (auto& term : rest.terms) g = std::gcd(g, term.second);
        g = std::gcd(g, rest.constant);
        if (g > 1) {
          LinearSum part = rest;
          for (auto& term : part.terms) term.second /= g;
          part.constant /= g;
          const ExprId small = rebuild(part);
          return s == Scalar::kDiv ? div(small, integer(k / g))
                                   : mul(mod(small, integer(k / g)), g);
        }
        // (g*a + r) / (g*b) = a/b and (g*a + r) % (g*b) = g*(a % b) + r  where r is in [0, g).
        for (const auto& [of, coefficient] : rest.terms) {
          const int64_t unit = std::gcd(k, coefficient);
          if (unit == 1) continue;
          const auto [units, below] = divided(rest, unit);
          const ExprId units_id = rebuild(units), below_id = rebuild(below);
          const auto units_range = range(units_id), below_range = range(below_id);
          if (!units_range || !below_range || units_range->low < 0 || below_range->low < 0 ||
              below_range->high >= unit)
            continue;
          return s == Scalar::kDiv ? div(units_id, integer(k / unit))
                                   : add(mul(mod(units_id, integer(k / unit)), unit), below_id);
        }
        // (x / a) / b = x / (a*b)
        if (s == Scalar::kDiv && x.scalar == Scalar::kDiv &&
            nodes_[x.args[1]].scalar == Scalar::kConst && nodes_[x.args[1]].integer > 0) {
          return div(x.args[0], integer(nodes_[x.args[1]].integer * k));
        }
        // (x % a) % b = x % b where b divides a
        if (s == Scalar::kMod && x.scalar == Scalar::kMod &&
            nodes_[x.args[1]].scalar == Scalar::kConst && nodes_[x.args[1]].integer % k == 0) {
          return mod(x.args[0], integer(k));
        }
      }
    }
  }
  return intern(std::move(expr));
}

ExprId Exprs::import(const Exprs& other, ExprId id, std::span<const ExprId> coords,
                     const LoadFn& load, ExprId acc, Known* known) {
  Known fresh;
  Known& done = known ? *known : fresh;
  std::function<ExprId(ExprId)> copy = [&](ExprId from) -> ExprId {
    if (from == kNoExpr) return kNoExpr;
    if (auto it = done.find(from); it != done.end()) return it->second;
    const Expr expr = other[from];  // by value: `other` may be this pool, which grows
    ExprId result = kNoExpr;
    switch (expr.scalar) {
      case Scalar::kCoord:
        CHECK(static_cast<size_t>(expr.slot) < coords.size(), "coordinate {} of {}", expr.slot,
              coords.size());
        result = coords[expr.slot];
        break;
      case Scalar::kConst: {
        Expr constant = expr;
        result = intern(std::move(constant));
        break;
      }
      case Scalar::kAcc:
        result = acc;
        break;
      case Scalar::kLoad: {
        std::vector<ExprId> at;
        for (ExprId coord : expr.coords) at.push_back(copy(coord));
        const ExprId guard = copy(expr.args[0]), otherwise = copy(expr.args[1]);
        result = load(expr.slot, expr.dtype, std::move(at), guard, otherwise);
        break;
      }
      // An import meets loads in this order, so it is fixed: the last argument first.
      case Scalar::kSelect: {
        const ExprId no = copy(expr.args[2]), yes = copy(expr.args[1]);
        result = select(copy(expr.args[0]), yes, no);
        break;
      }
      case Scalar::kCast:
        result = cast(copy(expr.args[0]), expr.dtype);
        break;
      case Scalar::kCastSat:
        result = cast(copy(expr.args[0]), expr.dtype, true);
        break;
      default: {
        const ExprId y = copy(expr.args[1]), x = copy(expr.args[0]);
        result = y == kNoExpr ? unary(expr.scalar, x) : binary(expr.scalar, x, y);
      }
    }
    done[from] = result;
    return result;
  };
  return copy(id);
}

std::optional<Affine> affine(const Exprs& exprs, ExprId id, int domain_rank) {
  LinearSum sum;
  flatten(exprs, id, 1, sum);
  Affine result{sum.constant, std::vector<int64_t>(domain_rank, 0)};
  for (auto [atom, coefficient] : sum.terms) {
    const Expr& expr = exprs[atom];
    if (expr.scalar != Scalar::kCoord || expr.slot >= domain_rank) return std::nullopt;
    result.strides[expr.slot] = plus(result.strides[expr.slot], coefficient);
  }
  return result;
}

double identity(Combine combine, DType dtype) {
  const bool real = is_float(dtype);
  switch (combine) {
    case Combine::kNone:
    case Combine::kSum:
    case Combine::kAny:
      return 0;
    case Combine::kProd:
    case Combine::kAll:
      return 1;
    case Combine::kMax:
      if (real) return -std::numeric_limits<double>::infinity();
      if (dtype == DType::b1 || !is_signed(dtype)) return 0;
      return -std::ldexp(1.0, bits(dtype) - 1);
    case Combine::kMin:
      if (real) return std::numeric_limits<double>::infinity();
      if (dtype == DType::b1) return 1;
      return std::ldexp(1.0, is_signed(dtype) ? bits(dtype) - 1 : bits(dtype)) - 1;
  }
  return 0;
}

MapStart start_map(const Call& call, const Shape& output) {
  MapStart start;
  Loop& loop = start.loop;
  loop.domain = output;
  loop.parallel = static_cast<int>(output.size());
  for (size_t d = 0; d < output.size(); ++d)
    start.coords.push_back(loop.exprs.coord(static_cast<int>(d), output[d]));
  for (int input = 0; input < call.arity(); ++input) {
    if (!call.has(input)) {
      start.values.push_back(kNoExpr);
      continue;
    }
    const Type& type = call.in(input);
    const size_t skip = output.size() - type.shape.size();
    std::vector<ExprId> at;
    for (size_t d = 0; d < type.shape.size(); ++d)
      at.push_back(type.shape[d] == 1 ? loop.exprs.integer(0) : start.coords[skip + d]);
    start.values.push_back(loop.exprs.load(input, type.dtype, std::move(at)));
  }
  return start;
}

Tensor evaluate(const Loop& loop, const Type& output, std::span<const Tensor* const> inputs) {
  Tensor result = Tensor::allocate(output);
  const Exprs& exprs = loop.exprs;
  const int rank = static_cast<int>(loop.domain.size());
  std::vector<std::vector<int64_t>> strides;
  for (const Tensor* input : inputs)
    strides.push_back(input ? row_major_strides(input->shape()) : std::vector<int64_t>{});
  std::vector<int64_t> at(rank, 0);
  Scalars acc;
  std::vector<Scalars> memo(exprs.size());
  std::vector<uint64_t> memo_point(exprs.size(), 0);
  uint64_t point = 0;

  std::function<Scalars(ExprId)> value = [&](ExprId id) -> Scalars {
    if (memo_point[id] == point) return memo[id];
    const Expr& expr = exprs[id];
    Scalars out;
    switch (expr.scalar) {
      case Scalar::kCoord:
        out.integer = at[expr.slot];
        break;
      case Scalar::kConst:
        out = {expr.real, expr.integer};
        break;
      case Scalar::kAcc:
        out = acc;
        break;
      case Scalar::kLoad: {
        if (expr.args[0] != kNoExpr && !value(expr.args[0]).integer) {
          out = value(expr.args[1]);
          break;
        }
        const Tensor& input = *inputs[expr.slot];
        int64_t offset = 0;
        for (size_t d = 0; d < expr.coords.size(); ++d) {
          const int64_t c = value(expr.coords[d]).integer;
          CHECK(c >= 0 && c < input.shape()[d], "load {} reads coordinate {} = {} of {}", expr.slot,
                d, c, to_string(input.shape()));
          offset += c * strides[expr.slot][d];
        }
        if (is_float(input.dtype()))
          out.real = input.get_double(offset);
        else
          out.integer = input.get_int(offset);
        break;
      }
      case Scalar::kCast:
      case Scalar::kCastSat:
        out = convert(value(expr.args[0]), compute_type(exprs[expr.args[0]].dtype), expr.dtype,
                      expr.scalar == Scalar::kCastSat);
        break;
      case Scalar::kSelect:
        out = value(expr.args[0]).integer ? value(expr.args[1]) : value(expr.args[2]);
        break;
      default: {
        const DType type = compute_type(exprs[expr.args[0]].dtype);
        const Scalars x = value(expr.args[0]);
        if (expr.args[1] == kNoExpr) {
          if (expr.scalar == Scalar::kIsNan)
            out.integer = is_float(type) && std::isnan(x.real);
          else if (expr.scalar == Scalar::kIsInf)
            out.integer = is_float(type) && std::isinf(x.real);
          else if (is_float(type))
            out.real = round_to(type, unary_real(expr.scalar, x.real), false);
          else
            out.integer = unary_int(expr.scalar, x.integer, type);
        } else {
          const Scalars y = value(expr.args[1]);
          if (is_comparison(expr.scalar))
            out.integer = compare(expr.scalar, x, y, type);
          else if (is_float(type))
            out.real = round_to(type, binary_real(expr.scalar, x.real, y.real), false);
          else
            out.integer = binary_int(expr.scalar, x.integer, y.integer, type);
        }
      }
    }
    memo[id] = out;
    memo_point[id] = point;
    return out;
  };

  const DType type = compute_type(exprs[loop.body].dtype);
  Shape parallel(loop.domain.begin(), loop.domain.begin() + loop.parallel);
  const int64_t outer = element_count(parallel);
  const int64_t inner =
      element_count(Shape(loop.domain.begin() + loop.parallel, loop.domain.end()));
  auto place = [&](int64_t linear, int from, int to) {
    for (int d = to - 1; d >= from; --d) {
      at[d] = linear % loop.domain[d];
      linear /= loop.domain[d];
    }
  };
  for (int64_t o = 0; o < outer; ++o) {
    place(o, 0, loop.parallel);
    Scalars sum{identity(loop.combine, type), 0};
    sum.integer = is_float(type)                                        ? 0
                  : type == DType::i64 && loop.combine == Combine::kMax ? INT64_MIN
                  : type == DType::i64 && loop.combine == Combine::kMin ? INT64_MAX
                  : type == DType::u64 && loop.combine == Combine::kMin
                      ? -1
                      : static_cast<int64_t>(sum.real);
    for (int64_t i = 0; i < inner; ++i) {
      place(i, loop.parallel, rank);
      ++point;
      const Scalars v = value(loop.body);
      const bool real = is_float(type);
      switch (loop.combine) {
        case Combine::kNone:
          sum = v;
          break;
        case Combine::kSum:
          real ? sum.real += v.real
               : sum.integer = binary_int(Scalar::kAdd, sum.integer, v.integer, type);
          break;
        case Combine::kProd:
          real ? sum.real *= v.real
               : sum.integer = binary_int(Scalar::kMul, sum.integer, v.integer, type);
          break;
        case Combine::kMax:
          real ? sum.real = binary_real(Scalar::kMax, sum.real, v.real)
               : sum.integer = binary_int(Scalar::kMax, sum.integer, v.integer, type);
          break;
        case Combine::kMin:
          real ? sum.real = binary_real(Scalar::kMin, sum.real, v.real)
               : sum.integer = binary_int(Scalar::kMin, sum.integer, v.integer, type);
          break;
        case Combine::kAny:
          sum.integer = sum.integer || v.integer;
          break;
        case Combine::kAll:
          sum.integer = sum.integer && v.integer;
          break;
      }
    }
    acc = sum;
    ++point;
    const ExprId stored = loop.finish == kNoExpr ? kNoExpr : loop.finish;
    const Scalars v = stored == kNoExpr ? acc : value(stored);
    if (is_float(output.dtype))
      result.set_double(o, v.real);
    else
      result.set_int(o, v.integer);
  }
  return result;
}

}  // namespace obelisk::ops
