// Random graphs that move: most of what they do is to name elements anew, to cut values and to join
// them, around ops that compute.
//
// A step is one of two kinds. A move takes a value at hand and gives another that holds some of its
// elements elsewhere; some come in forms that exporters write (channel shuffles, heads, windows,
// rolled axes, patches). A computation is one of RandomMaker, or a convolution, pooling, norm or
// product of the kinds that networks have between moves.
#include "graph/random_maker.h"

namespace obelisk::graph {
namespace {

using Ints = std::vector<int64_t>;

class Mover : public RandomMaker {
 public:
  using RandomMaker::RandomMaker;

 private:
  using Make = bool (Mover::*)();
  struct Choice {
    int weight;
    Make make;
  };

  template <size_t N>
  bool make_one_of(const Choice (&choices)[N]) {
    int64_t ticket = 0;
    for (const Choice& choice : choices) ticket += choice.weight;
    ticket = random_.below(ticket);
    for (const Choice& choice : choices) {
      ticket -= choice.weight;
      if (ticket < 0) return (this->*choice.make)();
    }
    return false;
  }

  bool make_one() override {
    if (random_.chance(options_.moves)) return make_move();
    static constexpr Choice kComputes[] = {
        {20, &Mover::map_one},   {14, &Mover::map_two},     {10, &Mover::map_aligned},
        {7, &Mover::reduce},     {4, &Mover::softmax},      {2, &Mover::masked_softmax},
        {4, &Mover::layer_norm}, {3, &Mover::channel_norm}, {8, &Mover::matmul},
        {4, &Mover::multiply},   {12, &Mover::convolve},    {4, &Mover::pool},
        {3, &Mover::select},     {1, &Mover::arg_max},      {2, &Mover::attend},
        {2, &Mover::cumulate},   {2, &Mover::top_values},   {2, &Mover::spread},
        {2, &Mover::mask},       {4, &Mover::project},
    };
    return make_one_of(kComputes);
  }

  bool make_move() {
    static constexpr Choice kMoves[] = {
        {7, &Mover::reshape},        {5, &Mover::regroup},        {9, &Mover::transpose},
        {5, &Mover::slice},          {3, &Mover::slice_axes},     {8, &Mover::split_parts},
        {16, &Mover::concat_pieces}, {4, &Mover::pad_axes},       {3, &Mover::expand},
        {3, &Mover::tile},           {3, &Mover::gather},         {2, &Mover::permute},
        {4, &Mover::space_to_depth}, {4, &Mover::depth_to_space}, {3, &Mover::squeeze},
        {3, &Mover::flatten},        {8, &Mover::shuffle},        {4, &Mover::shuffle_unit},
        {3, &Mover::roll},           {3, &Mover::heads},          {3, &Mover::windows},
        {8, &Mover::chain},          {2, &Mover::grow},           {2, &Mover::gather_elements},
        {2, &Mover::scatter},        {2, &Mover::triangle},
    };
    return make_one_of(kMoves);
  }

  // Pictures, sequences, signals, matrices; and now and then anything.
  Shape shape() override {
    static constexpr int64_t kChannels[] = {2, 3, 4, 4, 6, 8, 8, 12, 16};
    static constexpr int64_t kExtents[] = {1, 2, 3, 4, 4, 5, 6, 7, 8, 9};
    const auto channels = [&] { return kChannels[random_.below(std::size(kChannels))]; };
    const auto extent = [&] { return kExtents[random_.below(std::size(kExtents))]; };
    const int64_t batch = random_.chance(70) ? 1 : random_.between(2, 3);
    Shape out;
    if (options_.elements >= 8000 &&
        random_.chance(40)) {  // rows as tensor cores and copy engines want them
      out = {random_.between(1, 120), random_.chance(70) ? 64 : 128};
      out[0] = std::min(out[0], options_.elements / out[1]);
      if (random_.chance(50)) out.insert(out.begin(), 1);
      return out;
    }
    switch (random_.below(8)) {
      case 0:
      case 1:
      case 2:
      case 3:
        out = {batch, channels(), extent(), extent()};
        break;
      case 4:
      case 5:
        out = {batch, extent(), channels()};
        break;
      case 6:
        out = {extent(), channels()};
        break;
      default:
        return RandomMaker::shape();
    }
    if (options_.elements >= 8000 && random_.chance(50)) out.back() *= random_.between(2, 8);
    while (element_count(out) > options_.elements) {
      int64_t& most = *std::ranges::max_element(out);
      most = (most + 1) / 2;
    }
    return out;
  }

  // ---- small parts ----
  int64_t axis_of(ValueId x) { return random_.below(type(x).rank()); }
  static size_t at(int64_t axis) { return static_cast<size_t>(axis); }
  bool fits(int64_t elements) const { return elements > 0 && elements <= options_.elements; }

  int64_t divisor(int64_t of) {
    Ints divisors;
    for (int64_t k = 1; k <= of; ++k)
      if (of % k == 0) divisors.push_back(k);
    return divisors[at(random_.below(std::ssize(divisors)))];
  }

  Ints order_of(int rank) {
    Ints order(static_cast<size_t>(rank));
    std::iota(order.begin(), order.end(), 0);
    for (size_t k = order.size(); k-- > 1;)
      std::swap(order[k], order[at(random_.below(static_cast<int64_t>(k) + 1))]);
    return order;
  }

  ValueId moved(std::string_view op, std::vector<ValueId> inputs, ops::Attrs attrs = {}) {
    const double most = bound(inputs[0]);
    const ValueId out = add(op, std::move(inputs), std::move(attrs));
    bound(out) = most;
    return out;
  }
  ValueId reshaped(ValueId x, const Ints& to) { return moved("Reshape", {x, ints(to)}); }
  ValueId transposed(ValueId x, const Ints& order) {
    return moved("Transpose", {x}, ops::Attrs().set("perm", order));
  }
  ValueId sliced(ValueId x, int64_t axis, int64_t from, int64_t to) {
    return moved("Slice", {x, ints({from}), ints({to}), ints({axis})});
  }
  ValueId joined(std::vector<ValueId> pieces, int64_t axis) {
    double most = 0;
    for (const ValueId piece : pieces) most = std::max(most, bound(piece));
    const ValueId out = moved("Concat", std::move(pieces), ops::Attrs().set("axis", axis));
    bound(out) = most;
    return out;
  }

  // A value that nobody else will read: a cheap op of x.
  ValueId fresh(ValueId x) {
    static constexpr const char* kOps[] = {"Relu", "Neg", "Tanh", "Sigmoid", "Abs", "Swish"};
    const int64_t kind = random_.below(static_cast<int64_t>(std::size(kOps)) + 2);
    if (kind < static_cast<int64_t>(std::size(kOps))) {
      const double before = bound(x);
      const ValueId out = add(kOps[kind], {x});
      bound(out) = before;
      return out;
    }
    const double before = bound(x);
    const ValueId scalar =
        graph_.add_constant(tensor_of(options_.dtype, {}, {random_.chance(50) ? 2.0 : -0.5}));
    const bool sum = random_.chance(50);
    const ValueId out = add(sum ? "Add" : "Mul", {x, scalar});
    bound(out) = sum ? before + 2 : before * 2;
    return out;
  }

  // x as a value of rank 3 or 4 with channels second, or kNone.
  ValueId picture() {
    for (int tries = 0; tries < 4; ++tries) {
      const ValueId x = pick();
      const int rank = type(x).rank();
      if (rank == 4 || (rank == 3 && random_.chance(60))) return x;
    }
    const ValueId x = pick();
    const int64_t count = type(x).count();
    if (count < 4) return kNone;
    const int64_t channels = divisor(count), height = divisor(count / channels);
    return reshaped(x, {1, channels, height, count / channels / height});
  }

  // x as a value of this shape, by moves, or kNone.
  ValueId aligned(ValueId x, const Shape& shape) {
    Shape sorted = type(x).shape, wanted = shape;
    if (sorted == wanted) return x;
    if (sorted.size() == wanted.size() && sorted.size() > 1 && random_.chance(70)) {
      std::sort(sorted.begin(), sorted.end()), std::sort(wanted.begin(), wanted.end());
      if (sorted == wanted) {
        Ints order;
        std::vector<bool> used(shape.size());
        for (const int64_t extent : shape)
          for (size_t k = 0; k < shape.size(); ++k)
            if (!used[k] && type(x).shape[k] == extent) {
              used[k] = true, order.push_back(static_cast<int64_t>(k));
              break;
            }
        return transposed(x, order);
      }
    }
    if (type(x).count() == element_count(shape)) return reshaped(x, shape);
    if (type(x).shape.size() != shape.size()) return kNone;
    ValueId out = x;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const int64_t has = type(out).shape[axis], wants = shape[axis];
      if (has == wants) continue;
      if (has > wants) {
        const int64_t from = random_.between(0, has - wants);
        out = sliced(out, static_cast<int64_t>(axis), from, from + wants);
      } else {
        Ints pads(2 * shape.size());
        pads[axis] = random_.between(0, wants - has),
        pads[axis + shape.size()] = wants - has - pads[axis];
        if (!fits(type(out).count() / has * wants)) return kNone;
        out = moved("Pad", {out, ints(pads)});
      }
    }
    return out;
  }

  // ---- moves ----
  // One axis becomes two, or two neighbours one.
  bool regroup() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    Ints to = type(x).shape;
    const int64_t axis = axis_of(x);
    if (random_.chance(50) && axis + 1 < type(x).rank()) {
      to[at(axis)] *= to[at(axis) + 1];
      to.erase(to.begin() + axis + 1);
    } else {
      if (to.size() > 5) return false;
      const int64_t first = divisor(to[at(axis)]);
      to[at(axis)] /= first;
      to.insert(to.begin() + axis, first);
    }
    return made(reshaped(x, to), bound(x));
  }

  bool slice_axes() {
    const ValueId x = pick(2);
    if (x == kNone) return false;
    Ints starts, ends, axes, steps;
    for (int64_t axis = 0; axis < type(x).rank(); ++axis) {
      const int64_t extent = type(x).shape[at(axis)];
      if (random_.chance(40)) continue;
      const int64_t from = random_.below(extent), to = random_.between(from + 1, extent);
      const int64_t step = random_.between(1, 2);
      const bool back = random_.chance(15);
      starts.push_back(back ? to - 1 : from), ends.push_back(back ? from - 1 - extent : to);
      axes.push_back(axis), steps.push_back(back ? -step : step);
    }
    if (axes.empty()) return false;
    return made(moved("Slice", {x, ints(starts), ints(ends), ints(axes), ints(steps)}), bound(x));
  }

  std::vector<ValueId> parts_of(ValueId x, int64_t axis, const Ints& sizes) {
    const Result<NodeId> id = graph_.add_node(
        *ops::parse_op("Split"), {x, ints(sizes)}, ops::Attrs().set("axis", axis),
        fmt::format("Split{}", graph_.node_count()), static_cast<int>(sizes.size()));
    CHECK(id.ok(), "{}", id.error().text());
    const std::vector<ValueId> parts = graph_.node(*id).outputs;
    const double most = bound(x);
    for (const ValueId part : parts) bound(part) = most;
    return parts;
  }

  bool split_parts() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = axis_of(x), extent = type(x).shape[at(axis)];
    if (extent < 2) return false;
    const int64_t count = random_.between(2, std::min<int64_t>(extent, 4));
    Ints sizes(at(count), extent / count);
    sizes.back() += extent % count;
    if (random_.chance(40) && sizes[0] > 1) --sizes[0], ++sizes.back();
    for (const ValueId part : parts_of(x, axis, sizes)) keep(part, bound(part));
    return true;
  }

  // A piece like x but for this axis, of at most so many elements; kNone where none is made.
  ValueId piece_of(ValueId x, int64_t axis, int64_t most, int depth) {
    const Shape shape = type(x).shape;
    const int64_t extent = shape[at(axis)], one = type(x).count() / extent;  // elements of a slice
    switch (random_.below(9)) {
      case 0:
      case 1:
        return type(x).count() <= most ? fresh(x) : kNone;
      case 2: {  // a part of it
        const int64_t from = random_.below(extent), to = random_.between(from + 1, extent);
        if ((to - from) * one > most) return kNone;
        const ValueId part = sliced(x, axis, from, to);
        return random_.chance(60) ? fresh(part) : part;
      }
      case 3: {  // any other value, moved into place
        Shape wanted = shape;
        wanted[at(axis)] = random_.between(1, extent);
        const ValueId y = aligned(pick(), wanted);
        if (y == kNone || element_count(wanted) > most) return kNone;
        return random_.chance(60) ? fresh(y) : y;
      }
      case 4: {  // a concatenation again
        if (depth > 1) return kNone;
        std::vector<ValueId> inner;
        int64_t left = most;
        for (int k = 0; k < 2; ++k) {
          const ValueId piece = piece_of(x, axis, left, depth + 1);
          if (piece == kNone) continue;
          inner.push_back(piece), left -= type(piece).count();
        }
        return inner.empty() ? kNone : joined(inner, axis);
      }
      case 5: {  // the sum, mean or maximum over the axis
        if (one > most) return kNone;
        static constexpr const char* kOps[] = {"ReduceMax", "ReduceMean", "ReduceMin"};
        return moved(kOps[random_.below(3)], {x, ints({axis})},
                     ops::Attrs().set("keepdims", int64_t{1}));
      }
      case 6: {  // other numbers of channels, by a product
        if (!options_.compute || axis + 1 != type(x).rank() || type(x).rank() < 2) return kNone;
        const int64_t columns = random_.between(1, 8);
        if (columns * one > most) return kNone;
        const ValueId y = squeezed(x, 8);
        const double scale = 1 / std::sqrt(static_cast<double>(extent)),
                     high = bound(y) * 6 * static_cast<double>(extent) * scale;
        const ValueId out = add("MatMul", {y, weights({extent, columns}, scale)});
        bound(out) = high;
        return out;
      }
      case 7: {  // or by a convolution
        if (!options_.compute || axis != 1 || type(x).rank() != 4) return kNone;
        const int64_t columns = random_.between(1, 8);
        if (columns * one > most) return kNone;
        const ValueId y = squeezed(x, 8);
        const double high = bound(y) * 6 * std::sqrt(static_cast<double>(extent));
        const ValueId out =
            add("Conv",
                {y, weights({columns, extent, 1, 1}, 1 / std::sqrt(static_cast<double>(extent)))});
        bound(out) = high;
        return out;
      }
      default:
        return type(x).count() <= most ? (random_.chance(25) ? weights(shape) : x) : kNone;
    }
  }

  bool concat_pieces() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = axis_of(x), count = random_.between(2, 4);
    std::vector<ValueId> pieces;
    int64_t left = options_.elements;
    for (int64_t tries = 0; tries < 8 && std::ssize(pieces) < count; ++tries) {
      const ValueId piece = piece_of(x, axis, left, 0);
      if (piece == kNone) continue;
      pieces.push_back(piece), left -= type(piece).count();
    }
    if (pieces.size() < 2) return false;
    // Pieces that are read elsewhere too are stored there, or copied.
    for (const ValueId piece : pieces)
      if (!graph_.value(piece).is_constant() && random_.chance(15)) keep(piece, bound(piece));
    const ValueId out = joined(pieces, axis);
    return made(out, bound(out));
  }

  bool pad_axes() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    static constexpr const char* kModes[] = {"constant", "constant", "reflect", "edge", "wrap"};
    const std::string mode = kModes[random_.below(std::size(kModes))];
    const size_t rank = type(x).shape.size();
    Ints pads(2 * rank);
    Shape to = type(x).shape;
    for (size_t axis = 0; axis < rank; ++axis) {
      if (random_.chance(50)) continue;
      const int64_t most =
          mode == "constant" || mode == "edge" ? 2 : std::min<int64_t>(2, to[axis] - 1);
      pads[axis] = random_.between(0, most), pads[axis + rank] = random_.between(0, most);
      if (mode == "constant" && to[axis] > 2 && random_.chance(15)) pads[axis] = -1;  // cuts
      to[axis] += pads[axis] + pads[axis + rank];
    }
    if (!fits(element_count(to))) return false;
    std::vector<ValueId> inputs = {x, ints(pads)};
    if (mode == "constant" && random_.chance(40))
      inputs.push_back(graph_.add_constant(tensor_of(options_.dtype, {}, {1.5})));
    return made(moved("Pad", inputs, ops::Attrs().set("mode", mode)), std::max(bound(x), 1.5));
  }

  bool tile() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    Ints repeats(type(x).shape.size(), 1);
    repeats[at(axis_of(x))] = random_.between(2, 3);
    if (random_.chance(25)) repeats[at(axis_of(x))] = 2;
    int64_t count = type(x).count();
    for (const int64_t each : repeats) count *= each;
    if (!fits(count)) return false;
    return made(moved("Tile", {x, ints(repeats)}), bound(x));
  }

  // All of an axis in another order.
  bool permute() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = axis_of(x);
    if (type(x).shape[at(axis)] > 64) return false;
    const Ints rows = order_of(static_cast<int>(type(x).shape[at(axis)]));
    return made(moved("Gather", {x, ints(rows)}, ops::Attrs().set("axis", axis)), bound(x));
  }

  bool space_to_depth() {
    const ValueId x = picture();
    if (x == kNone || type(x).rank() != 4) return false;
    const int64_t size = random_.between(2, 3);
    if (type(x).shape[2] % size != 0 || type(x).shape[3] % size != 0) return false;
    return made(moved("SpaceToDepth", {x}, ops::Attrs().set("blocksize", size)), bound(x));
  }

  bool depth_to_space() {
    const ValueId x = picture();
    if (x == kNone || type(x).rank() != 4) return false;
    const int64_t size = random_.between(2, 3);
    if (type(x).shape[1] % (size * size) != 0) return false;
    const std::string mode = random_.chance(50) ? "DCR" : "CRD";
    return made(moved("DepthToSpace", {x}, ops::Attrs().set("blocksize", size).set("mode", mode)),
                bound(x));
  }

  bool flatten() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    return made(moved("Flatten", {x}, ops::Attrs().set("axis", random_.between(0, type(x).rank()))),
                bound(x));
  }

  ValueId shuffled(ValueId x, int64_t axis) {
    const Shape shape = type(x).shape;
    const int64_t groups = divisor(shape[at(axis)]);
    Ints apart = shape;
    apart[at(axis)] /= groups;
    apart.insert(apart.begin() + axis, groups);
    Ints order(apart.size());
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[at(axis)], order[at(axis) + 1]);
    return reshaped(transposed(reshaped(x, apart), order), shape);
  }

  // Channels of a few groups, shuffled: channel c of group g becomes channel g of group c.
  bool shuffle() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = type(x).rank() > 1 && random_.chance(70) ? 1 : axis_of(x);
    return made(shuffled(x, axis), bound(x));
  }

  // Halves, of which one is computed on, joined and shuffled: as ShuffleNet does.
  bool shuffle_unit() {
    const ValueId x = pick(2);
    if (x == kNone || type(x).shape[1] % 2 != 0) return false;
    const std::vector<ValueId> halves =
        parts_of(x, 1, {type(x).shape[1] / 2, type(x).shape[1] / 2});
    const ValueId one = fresh(halves[0]),
                  both = joined({random_.chance(50) ? one : halves[0], fresh(halves[1])}, 1);
    const ValueId out = random_.chance(70) ? shuffled(both, 1) : both;
    return made(out, bound(out));
  }

  bool roll() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = axis_of(x), extent = type(x).shape[at(axis)];
    if (extent < 2) return false;
    const int64_t cut = random_.between(1, extent - 1);
    const ValueId low = sliced(x, axis, 0, cut), high = sliced(x, axis, cut, extent);
    const ValueId out = joined({high, random_.chance(30) ? fresh(low) : low}, axis);
    return made(out, bound(out));
  }

  // [N,T,C] as heads [N,h,T,C/h], and back.
  bool heads() {
    const ValueId x = pick(3);
    if (x == kNone) return false;
    const Shape s = type(x).shape;
    if (s.size() == 3) {
      const int64_t count = divisor(s[2]);
      const ValueId apart = reshaped(x, {s[0], s[1], count, s[2] / count});
      return made(transposed(apart, random_.chance(80) ? Ints{0, 2, 1, 3} : Ints{0, 2, 3, 1}),
                  bound(x));
    }
    if (s.size() != 4) return false;
    return made(reshaped(transposed(x, {0, 2, 1, 3}), {s[0], s[2], s[1] * s[3]}), bound(x));
  }

  // A picture as windows or patches: [N,C,H,W] to [N H/h W/w, h w, C] and the like.
  bool windows() {
    const ValueId x = picture();
    if (x == kNone || type(x).rank() != 4) return false;
    const Shape s = type(x).shape;
    const int64_t h = divisor(s[2]), w = divisor(s[3]);
    const ValueId apart = reshaped(x, {s[0], s[1], s[2] / h, h, s[3] / w, w});
    if (random_.chance(50))
      return made(reshaped(transposed(apart, {0, 2, 4, 3, 5, 1}),
                           {s[0] * s[2] / h * s[3] / w, h * w, s[1]}),
                  bound(x));
    if (random_.chance(50))
      return made(
          reshaped(transposed(apart, {0, 1, 3, 5, 2, 4}), {s[0], s[1] * h * w, s[2] / h, s[3] / w}),
          bound(x));
    return made(transposed(apart, order_of(6)), bound(x));
  }

  // Moves one after another, of the last value each.
  bool chain() {
    if (depth_ > 0) return false;
    ++depth_;
    const size_t before = pool_.size();
    bool any = make_move();
    std::vector<ValueId> rest;
    for (int64_t k = random_.between(1, 3); any && k > 0 && pool_.size() > before; --k) {
      // Only what was just made is at hand.
      std::vector<ValueId> all = pool_;
      pool_ = {all.back()};
      make_move();
      all.insert(all.end(), pool_.begin() + 1, pool_.end());
      pool_ = std::move(all);
    }
    --depth_;
    return any;
  }

  // The nearest pixel, each twice.
  bool grow() {
    const ValueId x = picture();
    if (x == kNone || type(x).rank() != 4 || !fits(type(x).count() * 4)) return false;
    const ValueId scales = graph_.add_constant(tensor_of(DType::f32, {4}, {1, 1, 2, 2}));
    const ops::Attrs attrs = ops::Attrs()
                                 .set("mode", std::string("nearest"))
                                 .set("coordinate_transformation_mode", std::string("asymmetric"))
                                 .set("nearest_mode", std::string("floor"));
    return made(moved("Resize", {x, kNone, scales}, attrs), bound(x));
  }

  // Any element of the same line, for each element.
  bool gather_elements() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = axis_of(x), extent = type(x).shape[at(axis)];
    Tensor rows = Tensor::allocate({DType::i64, type(x).shape});
    for (int64_t k = 0; k < rows.count(); ++k)
      rows.set_int(k, random_.between(-extent, extent - 1));
    return made(
        moved("GatherElements", {x, graph_.add_constant(rows)}, ops::Attrs().set("axis", axis)),
        bound(x));
  }

  // A value with some of its slices replaced by another's.
  bool scatter() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = axis_of(x), extent = type(x).shape[at(axis)];
    if (extent < 2 || extent > 64) return false;
    Ints rows = order_of(static_cast<int>(extent));
    rows.resize(at(random_.between(1, extent - 1)));
    Shape shape = type(x).shape;
    shape[at(axis)] = std::ssize(rows);
    const ValueId other = aligned(pick(), shape);
    if (other == kNone) return false;
    int64_t inner = 1;
    for (size_t k = at(axis) + 1; k < shape.size(); ++k) inner *= shape[k];
    Tensor indices = Tensor::allocate({DType::i64, shape});
    for (int64_t k = 0; k < indices.count(); ++k)
      indices.set_int(k, rows[at(k / inner % std::ssize(rows))]);
    const double most = std::max(bound(x), bound(other));
    return made(add("ScatterElements", {x, graph_.add_constant(indices), other},
                    ops::Attrs().set("axis", axis)),
                most);
  }

  bool triangle() {
    const ValueId x = pick(2);
    if (x == kNone) return false;
    const ValueId from = graph_.add_constant(
        tensor_of(DType::i64, {}, {static_cast<double>(random_.between(-2, 2))}));
    return made(moved("Trilu", {x, from}, ops::Attrs().set("upper", int64_t{random_.chance(50)})),
                bound(x));
  }

  // ---- computations ----
  bool cumulate() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = axis_of(x);
    const ValueId along =
        graph_.add_constant(tensor_of(DType::i64, {}, {static_cast<double>(axis)}));
    ops::Attrs attrs;
    attrs.set("exclusive", int64_t{random_.chance(30)});
    attrs.set("reverse", int64_t{random_.chance(30)});
    const double most = bound(x) * static_cast<double>(type(x).shape[at(axis)]);
    return made(add("CumSum", {x, along}, attrs), most);
  }

  // The largest of a line in their order; where they stood is another matter.
  bool top_values() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = axis_of(x), count = random_.between(1, type(x).shape[at(axis)]);
    const Result<NodeId> id =
        graph_.add_node(*ops::parse_op("TopK"), {x, ints({count})},
                        ops::Attrs().set("axis", axis).set("largest", int64_t{random_.chance(60)}),
                        fmt::format("TopK{}", graph_.node_count()), 2);
    CHECK(id.ok(), "{}", id.error().text());
    const double most = bound(x);
    return made(graph_.node(*id).outputs[0], most);
  }

  // A transposed convolution.
  bool spread() {
    ValueId x = options_.compute ? picture() : kNone;
    if (x == kNone) return false;
    x = squeezed(x, 8);
    const Shape s = type(x).shape;
    const size_t dims = s.size() - 2;
    const int64_t groups = random_.chance(60) ? 1 : divisor(s[1]),
                  out = groups * random_.between(1, 6);
    Ints kernel, strides, pads(2 * dims);
    Shape to = {s[0], out};
    for (size_t k = 0; k < dims; ++k) {
      kernel.push_back(random_.between(1, 3));
      strides.push_back(random_.between(1, 2));
      if (kernel[k] == 3 && random_.chance(50)) pads[k] = pads[k + dims] = 1;
      to.push_back((s[k + 2] - 1) * strides[k] + kernel[k] - 2 * pads[k]);
      if (to.back() < 1) return false;
    }
    if (!fits(element_count(to))) return false;
    Shape filter = {s[1], out / groups};
    filter.insert(filter.end(), kernel.begin(), kernel.end());
    const double count = static_cast<double>(s[1] / groups * element_count(kernel));
    const ops::Attrs attrs =
        ops::Attrs().set("strides", strides).set("pads", pads).set("group", groups);
    return made(add("ConvTranspose", {x, weights(filter, 1 / std::sqrt(count))}, attrs),
                bound(x) * 6 * std::sqrt(count));
  }

  // One of two values by a mask that is known.
  bool mask() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const ValueId y = aligned(pick(), type(x).shape);
    if (y == kNone) return false;
    const Shape shape = type(x).shape;
    const Shape last(shape.end() - random_.between(1, std::ssize(shape)), shape.end());
    Tensor seen = Tensor::allocate({DType::b1, last});
    for (int64_t k = 0; k < seen.count(); ++k) seen.set_int(k, random_.chance(50));
    const double most = std::max(bound(x), bound(y));
    return made(add("Where", {graph_.add_constant(seen), x, y}), most);
  }

  // Two values of one shape, of which one is moved there.
  bool map_aligned() {
    const ValueId x = pick();
    const ValueId y = aligned(pick(), type(x).shape);
    if (y == kNone || y == x) return false;
    static constexpr const char* kOps[] = {"Add", "Add", "Sub", "Mul", "Max"};
    const std::string_view op = kOps[random_.below(std::size(kOps))];
    const ValueId a = op == "Mul" ? squeezed(x) : x, b = op == "Mul" ? squeezed(y) : y;
    const double most = op == "Mul" ? bound(a) * bound(b) : bound(a) + bound(b);
    return made(random_.chance(50) ? add(op, {a, b}) : add(op, {b, a}), most);
  }

  bool convolve() override {
    ValueId x = options_.compute ? picture() : kNone;
    if (x == kNone) return false;
    x = squeezed(x, 8);
    const Shape s = type(x).shape;
    const size_t dims = s.size() - 2;
    const int64_t channels = s[1];
    int64_t groups = 1, out = random_.between(1, 16);
    const int64_t kind = random_.below(10);
    if (kind < 3)
      groups = channels, out = channels * (random_.chance(75) ? 1 : 2);  // depthwise
    else if (kind < 5)
      groups = divisor(channels), out = groups * random_.between(1, 4);
    else if (kind < 7)
      out = 8 * random_.between(1, 3);
    Ints kernel, pads(2 * dims), strides, dilations;
    Shape to = {s[0], out};
    const bool point = random_.chance(35);
    for (size_t k = 0; k < dims; ++k) {
      kernel.push_back(point ? 1 : random_.between(1, 3));
      strides.push_back(random_.chance(70) ? 1 : 2);
      dilations.push_back(random_.chance(85) ? 1 : 2);
      const int64_t reach = dilations[k] * (kernel[k] - 1) + 1;
      if (random_.chance(75))
        pads[k] = pads[k + dims] = reach / 2;
      else if (random_.chance(30))
        pads[k] = 0, pads[k + dims] = 1;
      const int64_t extent = (s[k + 2] + pads[k] + pads[k + dims] - reach) / strides[k] + 1;
      if (s[k + 2] + pads[k] + pads[k + dims] < reach) return false;
      to.push_back(extent);
    }
    if (!fits(element_count(to))) return false;
    ops::Attrs attrs;
    attrs.set("pads", pads)
        .set("strides", strides)
        .set("dilations", dilations)
        .set("group", groups);
    Shape filter = {out, channels / groups};
    filter.insert(filter.end(), kernel.begin(), kernel.end());
    const double count = static_cast<double>(element_count(filter) / out);
    std::vector<ValueId> inputs = {x, weights(filter, 1 / std::sqrt(count))};
    if (random_.chance(50)) inputs.push_back(weights({out}));
    return made(add("Conv", inputs, attrs), bound(x) * 6 * std::sqrt(count) + 6);
  }

  bool pool() {
    const ValueId x = options_.compute ? picture() : kNone;
    if (x == kNone) return false;
    if (random_.chance(20)) {
      const ValueId y =
          random_.chance(70) ? add("GlobalAveragePool", {x}) : add("GlobalMaxPool", {x});
      return made(y, bound(x));
    }
    const Shape s = type(x).shape;
    Ints kernel, pads(2 * (s.size() - 2)), strides;
    for (size_t k = 0; k + 2 < s.size(); ++k) {
      kernel.push_back(random_.between(1, 3));
      strides.push_back(random_.between(1, 2));
      if (random_.chance(50)) pads[k] = pads[k + s.size() - 2] = kernel[k] / 2;
      if (s[k + 2] + 2 * pads[k] < kernel[k]) return false;
    }
    ops::Attrs attrs;
    attrs.set("kernel_shape", kernel).set("pads", pads).set("strides", strides);
    if (random_.chance(50)) return made(add("MaxPool", {x}, attrs), bound(x));
    attrs.set("count_include_pad", int64_t{random_.chance(50)});
    return made(add("AveragePool", {x}, attrs), bound(x));
  }

  // Norms over what a picture's channels hold.
  bool channel_norm() {
    const ValueId x = options_.compute ? picture() : kNone;
    if (x == kNone) return false;
    const Shape s = type(x).shape;
    const int64_t channels = s[1], kind = random_.below(3);
    const int64_t groups = kind == 0 ? divisor(channels) : channels;
    if (kind < 2 && type(x).count() / s[0] / groups < 2)
      return false;  // the deviation of one element is zero, the answer mere rounding
    const ValueId scale = weights({channels}), shift = weights({channels});
    const ops::Attrs attrs = ops::Attrs().set("epsilon", 1e-2);
    const double most = 6 * std::sqrt(static_cast<double>(type(x).count())) + 6;
    if (kind == 0)
      return made(
          add("GroupNormalization", {x, scale, shift}, ops::Attrs(attrs).set("num_groups", groups)),
          most);
    if (kind == 1) return made(add("InstanceNormalization", {x, scale, shift}, attrs), most);
    Tensor variance = Tensor::allocate({options_.dtype, {channels}});
    for (int64_t k = 0; k < channels; ++k) variance.set_double(k, 0.5 + random_.unit());
    const ValueId mean = weights({channels});
    return made(
        add("BatchNormalization", {x, scale, shift, mean, graph_.add_constant(variance)}, attrs),
        9 * (bound(x) + 6) + 6);
  }

  // A product of two values, of which one is moved so that they fit.
  bool multiply() {
    ValueId x = pick(2);
    if (x == kNone || !options_.compute) return false;
    x = squeezed(x, 8);
    const Shape s = type(x).shape;
    const ValueId other = pick(2);
    if (other == kNone) return false;
    const int64_t inner = s.back(), columns = random_.between(1, 8);
    Shape wanted = s;
    wanted[s.size() - 2] = inner, wanted.back() = columns;
    if (!fits(element_count(s) / inner * columns) || !fits(element_count(wanted))) return false;
    ValueId y = aligned(squeezed(other, 8), wanted);
    if (y == kNone) {  // a matrix, if there is no batch of them
      wanted = {inner, columns};
      y = type(other).rank() == 2 ? aligned(squeezed(other, 8), wanted) : kNone;
    }
    if (y == kNone) return false;
    const double most = bound(x) * bound(y) * static_cast<double>(inner);
    return made(add("MatMul", {x, y}), most);
  }

  // A product with weights of widths that tiles have, and others; more often of long rows.
  bool project() {
    ValueId x = pick(2);
    if (x == kNone || !options_.compute || (type(x).shape.back() % 64 != 0 && random_.chance(70)))
      return false;
    x = squeezed(x, 8);
    static constexpr int64_t kWidths[] = {8, 16, 24, 33, 40, 64, 96, 128};
    const int64_t inner = type(x).shape.back(),
                  columns = kWidths[random_.below(std::size(kWidths))];
    if (!fits(type(x).count() / inner * columns)) return false;
    const double most = bound(x) * 6 * std::sqrt(static_cast<double>(inner));
    ValueId out =
        add("MatMul", {x, weights({inner, columns}, 1 / std::sqrt(static_cast<double>(inner)))});
    if (random_.chance(50)) out = add("Add", {out, weights({columns})});
    return made(out, most + 6);
  }

  // Heads of one value that look at each other.
  bool attend() {
    ValueId x = options_.compute ? pick(3) : kNone;
    if (x == kNone || type(x).rank() != 3) return false;
    x = squeezed(x, 8);
    const Shape s = type(x).shape;
    const int64_t count = divisor(s[2]), size = s[2] / count;
    if (!fits(s[0] * count * s[1] * s[1])) return false;
    const double scale = 1 / std::sqrt(static_cast<double>(s[2]));
    const auto head = [&](const Ints& order) {
      const ValueId y =
          random_.chance(60) ? add("MatMul", {x, weights({s[2], s[2]}, scale)}) : fresh(x);
      bound(y) = bound(x) * 6 * std::sqrt(static_cast<double>(s[2]));
      return transposed(reshaped(y, {s[0], s[1], count, size}), order);
    };
    const ValueId q = head({0, 2, 1, 3}), k = head({0, 2, 3, 1}), v = head({0, 2, 1, 3});
    const ValueId by = graph_.add_constant(
        tensor_of(options_.dtype, {}, {1 / std::sqrt(static_cast<double>(size))}));
    const ValueId scores = add("Mul", {add("MatMul", {q, k}), by});
    const ValueId shares = add("Softmax", {scores}, ops::Attrs().set("axis", int64_t{-1}));
    const ValueId seen = add("MatMul", {shares, v});
    const double most = bound(v);
    bound(seen) = most;
    return made(reshaped(transposed(seen, {0, 2, 1, 3}), s), most);
  }

  // What nobody reads; and of what is read, about a sixth.
  void mark_outputs() override {
    std::vector<ValueId> outputs;
    for (const ValueId id : pool_) {
      if (graph_.value(id).producer == kNone || std::ranges::find(outputs, id) != outputs.end())
        continue;
      if (graph_.users(id).empty() || random_.chance(16)) outputs.push_back(id);
    }
    if (outputs.empty()) outputs.push_back(pool_.back());
    for (size_t k = 0; k < outputs.size(); ++k)
      graph_.mark_output(outputs[k], fmt::format("y{}", k));
  }

  int depth_ = 0;  // of chains
};

}  // namespace

Graph random_moving_graph(uint64_t seed, const RandomOptions& options) {
  return Mover(seed, options).run();
}

}  // namespace obelisk::graph
