#include "schedule/shadow_run.h"

#include <algorithm>
#include <map>
#include <set>

#include "schedule/dataflow_spans.h"
#include "schedule/point_values.h"
#include "schedule/storage_box.h"

namespace obelisk::schedule {
namespace {

using ops::Expr;
using ops::kNoExpr;
using ops::Scalar;
using stitch::Body;
using stitch::Group;
using stitch::GroupKind;
using stitch::Step;
using stitch::StepKind;

using Numbers = std::vector<int64_t>;  // one a point
using Tag = uint64_t;                  // a storage and an element of it, row-major; 0: nothing

constexpr int kElementBits = 40;
constexpr int64_t kBatch = 4096;  // points evaluated at once

Tag tag_of(int64_t storage, int64_t element) {
  return (static_cast<Tag>(storage) + 1) << kElementBits | static_cast<Tag>(element);
}
std::string text_of(Tag tag) {
  if (tag == 0) return "nothing";
  const Tag element = tag & ((Tag{1} << kElementBits) - 1);
  return fmt::format("element {} of %{}", element, (tag >> kElementBits) - 1);
}

/// Memory with tags. A unit is the smallest element that is stored there.
struct Area {
  int64_t unit = 1;  // bytes
  std::vector<Tag> tags;
  std::vector<int32_t> read_in;  // the last wave that read it, less -1
  std::vector<int32_t> stored_in;
  void resize(int64_t bytes) {
    const auto units = static_cast<size_t>((bytes + unit - 1) / unit);
    tags.assign(units, 0), read_in.assign(units, -1), stored_in.assign(units, -1);
  }
};

/// How the elements of a value are tagged: by their place in the storage, whichever way it is laid
/// out.
struct Tagging {
  ValueId storage = graph::kNone;
  int64_t base = 0;
  Numbers strides;
};

/// Points of a work's folded domain.
struct Points {
  std::vector<Numbers> dims;  // by folded dimension
  size_t count() const { return dims.empty() ? 1 : dims[0].size(); }
};

class Shadow {
 public:
  Shadow(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks,
         const ShadowOptions& options)
      : graph_(graph), plan_(plan), tasks_(tasks), options_(options) {}

  Status run() {
    TRY_STATUS(prepare());
    std::vector<std::vector<std::pair<const ObkTask*, int>>> waves(
        static_cast<size_t>(std::max(tasks_.waves, 1)));
    for (size_t sm = 0; sm < tasks_.lists.size(); ++sm)
      for (const ObkTask& task : tasks_.lists[sm])
        waves[task.wave].emplace_back(&task, static_cast<int>(sm));
    for (size_t wave = 0; wave < waves.size(); ++wave) {
      wave_ = static_cast<int32_t>(wave);
      TRY_STATUS(read_operands());
      for (const auto& [task, sm] : waves[wave]) {
        TRY_STATUS(read(*task, sm));
        if (tasks_.works[task->work].replicated()) TRY_STATUS(store(*task, sm));
      }
      for (const auto& [task, sm] : waves[wave])
        if (!tasks_.works[task->work].replicated()) TRY_STATUS(store(*task, sm));
      TRY_STATUS(store_whole());
    }
    return check_end();
  }

 private:
  // ---- memory --------------------------------------------------------------------------------------------------------

  Status prepare() {
    int64_t smallest = 16;
    for (const Buffer& buffer : tasks_.buffers)
      if (buffer.kind == BufferKind::kArena)
        smallest = std::min(smallest, std::max<int64_t>(byte_size(buffer.type.dtype, 1), 1));
    arena_.unit = smallest;
    arena_.resize(tasks_.arena.count);
    outputs_.resize(tasks_.buffers.size());
    for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
      const Buffer& buffer = tasks_.buffers[b];
      if (buffer.kind == BufferKind::kOutput) {
        outputs_[b].unit = std::max<int64_t>(byte_size(buffer.type.dtype, 1), 1);
        outputs_[b].resize(buffer.size.count);
      } else if (is_kept(buffer)) {
        for (int64_t at = 0; at < buffer.size.count; at += arena_.unit)
          arena_.tags[unit_at(buffer, at)] = kept_tag(b);
      }
    }
    if (tasks_.dataflow) {
      Area copies;
      copies.unit = smallest;
      copies.resize(tasks_.copies.count);
      copies_.assign(tasks_.lists.size(), copies);
      gathered_.resize(tasks_.lists.size());
    }
    taggings_.resize(static_cast<size_t>(graph_.value_count()));
    return ok_status();
  }
  /// Bytes that blocks and attention's pieces exchange: nobody else may store there.
  static bool is_kept(const Buffer& buffer) {
    return buffer.kind == BufferKind::kArena && buffer.value == graph::kNone &&
           buffer.type.dtype == DType::u8;
  }
  Tag kept_tag(size_t b) const {
    return tag_of(2 * graph_.value_count() + static_cast<int64_t>(b), 0);
  }
  size_t unit_at(const Buffer& buffer, int64_t byte) const {
    return static_cast<size_t>((buffer.offset.count + byte) / arena_.unit);
  }

  Result<const Tagging*> tagging(ValueId value) {
    Tagging& made = taggings_[static_cast<size_t>(value)];
    if (made.storage != graph::kNone) return &made;
    TRY(const StorageBox box, storage_box(graph_, plan_, value));
    made.strides = row_major_strides(graph_.type(box.storage).shape);
    for (size_t d = 0; d < box.begin.size(); ++d) made.base += box.begin[d] * made.strides[d];
    made.storage = box.storage;
    return &made;
  }

  Error wrong(size_t work, std::string text) const {
    const NodeName name = name_of(work);
    return Error{Code::kBuild, "schedule",
                 fmt::format("shadow run, wave {}, work {}: {}", wave_, work, text), name,
                 "this is a defect of Obelisk; please report it with the model"};
  }
  using NodeName = std::string;
  NodeName name_of(size_t work) const {
    const Group& group = plan_.groups[tasks_.works[work].group];
    return group.nodes.empty() ? "" : graph_.node(group.nodes.front()).name;
  }

  /// Where buffer `b` is for worker `sm`: the memory and the byte at which it begins there. Nothing
  /// for inputs and weights.
  struct Place {
    Area* area = nullptr;
    int64_t begin = 0;
  };
  Place place(int b, int sm) {
    const Buffer& buffer = tasks_.buffers[static_cast<size_t>(b)];
    if (buffer.kind == BufferKind::kOutput) return {&outputs_[static_cast<size_t>(b)], 0};
    if (buffer.kind != BufferKind::kArena) return {};
    if (tasks_.dataflow && buffer.reach != Reach::kAll && sm >= 0)
      return {&copies_[static_cast<size_t>(sm)], buffer.copy_at.count};
    return {&arena_, buffer.offset.count};
  }

  /// One element is read from `offset` (in elements) of a work's buffer, where `tag` is meant to
  /// stand.
  Status look(size_t work, int b, int sm, int64_t offset, Tag tag) {
    const Buffer& buffer = tasks_.buffers[static_cast<size_t>(b)];
    const int64_t width = bits(buffer.type.dtype);
    if (offset < 0 || (offset + 1) * width > 8 * buffer.size.count)
      return wrong(work, fmt::format("reads element {} of a buffer of {}, {} is meant", offset,
                                     to_string(buffer.size), text_of(tag)));
    const Place at = place(b, sm);
    if (at.area == nullptr) {  // as the caller or the packer lays it out: dense, row-major
      if (tag == tag_of(buffer.value, offset)) return ok_status();
      return wrong(work, fmt::format("reads element {} of %{}, {} is meant", offset, buffer.value,
                                     text_of(tag)));
    }
    if (width < 8) tag -= static_cast<Tag>(offset % (8 / width));
    const int64_t byte = at.begin + offset * width / 8;
    const bool copies = at.area != &arena_ && tasks_.dataflow;
    for (int64_t u = byte / at.area->unit;
         u * at.area->unit < byte + std::max<int64_t>(width / 8, 1); ++u) {
      const auto unit = static_cast<size_t>(u);
      if (at.area->tags[unit] != tag)
        return wrong(work,
                     fmt::format("reads {} at element {} of value %{}'s buffer, {} is meant",
                                 text_of(at.area->tags[unit]), offset, buffer.value, text_of(tag)));
      if (!copies && !tasks_.dataflow && at.area->stored_in[unit] == wave_)
        return wrong(work, fmt::format("reads {}, which the same wave stores", text_of(tag)));
      at.area->read_in[unit] = wave_;
    }
    return ok_status();
  }

  Status put(size_t work, int b, int sm, int64_t offset, Tag tag) {
    const Buffer& buffer = tasks_.buffers[static_cast<size_t>(b)];
    const int64_t width = bits(buffer.type.dtype);
    if (offset < 0 || (offset + 1) * width > 8 * buffer.size.count)
      return wrong(work, fmt::format("stores {} at element {} of a buffer of {}", text_of(tag),
                                     offset, to_string(buffer.size)));
    const bool own = tasks_.works[work].replicated();
    const Place at = place(b, own ? sm : -1);
    if (at.area == nullptr)
      return wrong(work, fmt::format("stores {} into an input or a weight", text_of(tag)));
    if (width < 8) tag -= static_cast<Tag>(offset % (8 / width));
    const int64_t byte = at.begin + offset * width / 8;
    for (int64_t u = byte / at.area->unit;
         u * at.area->unit < byte + std::max<int64_t>(width / 8, 1); ++u) {
      const auto unit = static_cast<size_t>(u);
      if (!own) {
        if (at.area->stored_in[unit] == wave_ && width >= 8)
          return wrong(work, fmt::format("stores {} where the same wave stores {}", text_of(tag),
                                         text_of(at.area->tags[unit])));
        if (at.area->read_in[unit] == wave_)
          return wrong(work, fmt::format("stores {} over {}, which the same wave reads",
                                         text_of(tag), text_of(at.area->tags[unit])));
        if (&arena_ == at.area && at.area->tags[unit] >= tag_of(2 * graph_.value_count(), 0))
          return wrong(work,
                       fmt::format("stores {} into bytes that last from run to run", text_of(tag)));
      }
      at.area->tags[unit] = tag, at.area->stored_in[unit] = wave_;
    }
    return ok_status();
  }

  /// Every element of a value, as its layout has it: with the offset in its storage and its tag.
  template <typename F>
  Status each_element(ValueId value, F&& f) {
    TRY(const Tagging* tags, tagging(value));
    const stitch::Layout& layout = plan_.layouts[value];
    const Shape& shape = graph_.type(value).shape;
    const int64_t count = element_count(shape);
    Numbers at(shape.size(), 0);
    int64_t offset = layout.offset, element = tags->base;
    for (int64_t k = 0; k < count; ++k) {
      TRY_STATUS(f(offset, tag_of(tags->storage, element)));
      for (size_t d = shape.size(); d-- > 0;) {
        offset += layout.strides[d], element += tags->strides[d];
        if (++at[d] < shape[d]) break;
        offset -= shape[d] * layout.strides[d], element -= shape[d] * tags->strides[d];
        at[d] = 0;
      }
    }
    return ok_status();
  }
  Status look_at_whole(size_t work, int b, int sm, ValueId value) {
    return each_element(value,
                        [&](int64_t offset, Tag tag) { return look(work, b, sm, offset, tag); });
  }

  // ---- points --------------------------------------------------------------------------------------------------------

  /// Points of rows [r0, r1) (each `step`-th) and linear columns [c0, c1).
  static Points points_of(const Nest& nest, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    Points points;
    points.dims.resize(nest.dims.size());
    const size_t rows = static_cast<size_t>(nest.rows);
    for (int64_t r = r0; r < r1; ++r)
      for (int64_t c = c0; c < c1; ++c) {
        int64_t row = r, column = c;
        const auto split = [&](size_t d, int64_t& place) {
          const int64_t extent = std::max<int64_t>(nest.dims[d].extent, 1);  // 0: sums over nothing
          points.dims[d].push_back(place % extent), place /= extent;
        };
        for (size_t d = rows; d-- > 0;) split(d, row);
        for (size_t d = nest.dims.size(); d-- > rows;) split(d, column);
      }
    return points;
  }
  /// The coordinates of the body's domain at those points.
  static std::vector<Numbers> coords_of(const Body& body, const Nest& nest, const Points& points) {
    std::vector<Numbers> coords(body.domain.size(), Numbers(points.count(), 0));
    for (size_t d = 0; d < nest.dims.size(); ++d) {
      Numbers rest = points.dims[d];
      for (size_t k = nest.dims[d].coords.size(); k-- > 0;) {
        const auto slot = static_cast<size_t>(nest.dims[d].coords[k]);
        const int64_t extent = body.domain[slot];
        for (size_t p = 0; p < rest.size(); ++p) {
          coords[slot][p] = k == 0 ? rest[p] : rest[p] % extent;
          rest[p] /= extent;
        }
      }
    }
    return coords;
  }
  static Numbers offsets_of(const Access& access, const Points& points) {
    Numbers out(points.count(), access.offset);
    for (size_t d = 0; d < access.strides.size(); ++d)
      if (access.strides[d])
        for (size_t p = 0; p < out.size(); ++p) out[p] += access.strides[d] * points.dims[d][p];
    return out;
  }

  PointValues values_of(const Group& group) const {
    return PointValues(group.body.exprs, [this, &group](int slot) -> const Tensor* {
      if (slot >= stitch::kRowSlot) return nullptr;
      const graph::Value& value = graph_.value(group.body.operands[static_cast<size_t>(slot)]);
      return value.is_constant() ? &value.constant : nullptr;
    });
  }

  /// Calls `f(points, coords)` for batches of a task's points; of `rows_only` one point a row.
  template <typename F>
  Status batches(const Work& work, const Body& body, const ObkTask& task, bool rows_only,
                 int64_t row_step, F&& f) {
    const int64_t columns = std::max<int64_t>(work.nest.column_count(), 1);
    const int64_t c0 = rows_only ? 0 : work.nest.cut_columns ? task.c0 : 0;
    const int64_t c1 = rows_only ? 1 : work.nest.cut_columns ? task.c1 : columns;
    const int64_t rows_at_once =
        row_step > 1 ? 1 : std::max<int64_t>(kBatch / std::max<int64_t>(c1 - c0, 1), 1);
    for (int64_t r = task.r0; r < task.r1; r += row_step > 1 ? row_step : rows_at_once)
      for (int64_t c = c0; c < c1; c += kBatch) {
        const Points points = points_of(work.nest, r, std::min(r + rows_at_once, task.r1), c,
                                        std::min(c + kBatch, c1));
        TRY_STATUS(f(points, coords_of(body, work.nest, points)));
      }
    return ok_status();
  }

  // ---- reads ---------------------------------------------------------------------------------------------------------

  /// Tags of the element of `value` at the coordinates; outside of it an error of the work.
  Status tags_at(size_t work, ValueId value, const std::vector<const Numbers*>& at,
                 const Numbers* guard, Numbers& elements) {
    TRY(const Tagging* tags, tagging(value));
    const Shape& shape = graph_.type(value).shape;
    for (size_t p = 0; p < elements.size(); ++p) {
      if (guard && (*guard)[p] == 0) continue;
      int64_t element = tags->base;
      for (size_t d = 0; d < shape.size(); ++d) {
        const int64_t coordinate = (*at[d])[p];
        if (coordinate < 0 || coordinate >= shape[d])
          return wrong(work,
                       fmt::format("names coordinate {} of dimension {} of %{}, whose extent is {}",
                                   coordinate, d, value, shape[d]));
        element += coordinate * tags->strides[d];
      }
      elements[p] = element;
    }
    return ok_status();
  }

  Status read(const ObkTask& task, int sm) {
    const Work& work = tasks_.works[task.work];
    const Group& group = plan_.groups[work.group];
    if (stitch::calls_op(group.kind)) return ok_status();  // whole values, once a work
    if (tasks_.dataflow) TRY_STATUS(gather(task, sm));
    const int64_t all = work.nest.row_count() * std::max<int64_t>(work.nest.column_count(), 1);
    const int64_t row_step =
        all > options_.most_points ? (all + options_.most_points - 1) / options_.most_points : 1;
    PointValues values = values_of(group);
    // By whether a load moves with the columns: one point a row is enough for the others.
    for (const bool rows_only : {true, false}) {
      std::vector<const Access*> loads;
      for (const Access& access : work.nest.accesses)
        if (access.load != kNoExpr &&
            moves_with_columns(work, group.body, access.load) != rows_only)
          loads.push_back(&access);
      if (loads.empty()) continue;
      TRY_STATUS(batches(work, group.body, task, rows_only, row_step,
                         [&](const Points& points, std::vector<Numbers> coords) -> Status {
                           values.begin(std::move(coords));
                           for (const Access* access : loads)
                             TRY_STATUS(read_load(task.work, sm, *access, points, values));
                           return ok_status();
                         }));
    }
    return check_tile_rows(task);
  }

  bool moves_with_columns(const Work& work, const Body& body, ops::ExprId id) {
    std::vector<bool> column(body.domain.size(), false);
    for (size_t d = static_cast<size_t>(work.nest.rows); d < work.nest.dims.size(); ++d)
      for (const int slot : work.nest.dims[d].coords) column[static_cast<size_t>(slot)] = true;
    std::map<ops::ExprId, bool> seen;
    const std::function<bool(ops::ExprId)> walk = [&](ops::ExprId at) {
      if (const auto it = seen.find(at); it != seen.end()) return it->second;
      const Expr& expr = body.exprs[at];
      bool moves = expr.scalar == Scalar::kCoord && column[static_cast<size_t>(expr.slot)];
      for (const ops::ExprId arg : expr.args)
        if (arg != kNoExpr) moves = walk(arg) || moves;
      for (const ops::ExprId coord : expr.coords) moves = walk(coord) || moves;
      return seen[at] = moves;
    };
    return walk(id);
  }

  Status read_load(size_t w, int sm, const Access& access, const Points& points,
                   PointValues& values) {
    const Work& work = tasks_.works[w];
    const Body& body = plan_.groups[work.group].body;
    const Expr& load = body.exprs[access.load];
    const ValueId value = body.operands[static_cast<size_t>(access.operand)];
    const int b = work.buffers[static_cast<size_t>(access.operand)];
    const bool guarded = load.args[0] != kNoExpr;
    bool known = !guarded || values.known(load.args[0]);
    for (const ops::ExprId at : load.coords) known = known && values.known(at);
    if (!known) {  // any element, then
      if (!whole_.insert({static_cast<int>(w), sm, value}).second) return ok_status();
      return look_at_whole(w, b, sm, value);
    }
    const Numbers* guard = guarded ? &values[load.args[0]] : nullptr;
    std::vector<const Numbers*> at;
    for (const ops::ExprId coord : load.coords) at.push_back(&values[coord]);
    Numbers elements(points.count(), 0);
    TRY_STATUS(tags_at(w, value, at, guard, elements));
    TRY(const Tagging* tags, tagging(value));
    const Numbers offsets =
        access.affine ? offsets_of(access, points) : laid_out(value, at, points.count());
    for (size_t p = 0; p < offsets.size(); ++p)
      if (!guard || (*guard)[p] != 0)
        TRY_STATUS(look(w, b, sm, offsets[p], tag_of(tags->storage, elements[p])));
    return ok_status();
  }

  Numbers laid_out(ValueId value, const std::vector<const Numbers*>& at, size_t points) const {
    const stitch::Layout& layout = plan_.layouts[value];
    Numbers out(points, layout.offset);
    for (size_t d = 0; d < at.size(); ++d)
      for (size_t p = 0; p < points; ++p) out[p] += layout.strides[d] * (*at[d])[p];
    return out;
  }

  /// What is given to all workers comes into the worker's copy before the first task that reads it.
  Status gather(const ObkTask& task, int sm) {
    const Work& work = tasks_.works[task.work];
    const Group& group = plan_.groups[work.group];
    for (size_t slot = 0; slot < work.buffers.size(); ++slot) {
      const int b = work.buffers[slot];
      const Buffer& buffer = tasks_.buffers[static_cast<size_t>(b)];
      if (buffer.reach != Reach::kBroadcast || read_by(plan_, tasks_, task, slot).empty()) continue;
      if (!gathered_[static_cast<size_t>(sm)].insert(b).second) continue;
      Area& copies = copies_[static_cast<size_t>(sm)];
      for (int64_t at = 0; at < buffer.size.count; at += arena_.unit) {
        const size_t from = unit_at(buffer, at),
                     to = static_cast<size_t>((buffer.copy_at.count + at) / copies.unit);
        if (arena_.stored_in[from] >= wave_)
          return wrong(task.work, fmt::format("gathers {} in the wave that gives it",
                                              text_of(arena_.tags[from])));
        copies.tags[to] = arena_.tags[from];
      }
    }
    (void)group;
    return ok_status();
  }

  // ---- operands of tiles and of ops that are called -------------------------------------------------------------------

  /// Once a work, in its wave: every element that its tiles read, as the graph means it.
  Status read_operands() {
    for (size_t w = 0; w < tasks_.works.size(); ++w) {
      const Work& work = tasks_.works[w];
      if (work.wave != wave_ || work.nest.row_count() == 0) continue;
      const Group& group = plan_.groups[work.group];
      if (stitch::calls_op(group.kind)) {
        for (const WorkAccess& access : accesses_of(graph_, plan_, work).reads)
          TRY_STATUS(look_at_whole(w, work.buffers[access.slot], -1, access.value));
        continue;
      }
      const auto slot = static_cast<size_t>(work.operand_count(group));
      if (group.kind == GroupKind::kProduct) {
        TRY_STATUS(read_product(w, slot));
      } else if (group.kind == GroupKind::kConv && !tasks_.dataflow) {
        TRY_STATUS(look_at_whole(w, work.buffers[slot], -1, group.conv.x));
      } else if (group.kind == GroupKind::kAttention) {
        TRY_STATUS(read_attention(w, slot));
      }
    }
    return ok_status();
  }

  /// Follows an element of `from` through moves to `to`; coordinates are replaced.
  Status follow(size_t work, ValueId from, ValueId to, std::vector<Numbers>& at) {
    while (from != to) {
      const graph::Value& value = graph_.value(from);
      if (value.producer == graph::kNone || value.is_constant())
        return wrong(work, fmt::format("no moves lead from %{} to its operand %{}", from, to));
      const graph::Node& node = graph_.node(value.producer);
      const std::optional<ops::Loop> form =
          ops::loop(graph_.call(value.producer), value.producer_output);
      const Expr* body =
          form && form->combine == ops::Combine::kNone ? &form->exprs[form->body] : nullptr;
      if (body && body->scalar == Scalar::kCast) body = &form->exprs[body->args[0]];
      if (!body || body->scalar != Scalar::kLoad || body->args[0] != kNoExpr)
        return wrong(work, fmt::format("'{}' between %{} and its operand %{} is no move", node.name,
                                       from, to));
      PointValues values(form->exprs, [&](int slot) -> const Tensor* {
        const graph::Value& input = graph_.value(node.inputs[static_cast<size_t>(slot)]);
        return input.is_constant() ? &input.constant : nullptr;
      });
      values.begin(at);
      std::vector<Numbers> next;
      for (const ops::ExprId coord : body->coords) {
        if (!values.known(coord)) return wrong(work, fmt::format("'{}' moves by data", node.name));
        next.push_back(values[coord]);
      }
      from = node.inputs[static_cast<size_t>(body->slot)];
      at = std::move(next);
    }
    return ok_status();
  }

  /// Elements at coordinates of `from`, which an operand `to` has at `offsets` of its storage.
  Status look_through(size_t work, int b, ValueId from, ValueId to, std::vector<Numbers> at,
                      const Numbers& offsets) {
    TRY_STATUS(follow(work, from, to, at));
    std::vector<const Numbers*> coords;
    for (const Numbers& one : at) coords.push_back(&one);
    Numbers elements(offsets.size(), 0);
    TRY_STATUS(tags_at(work, to, coords, nullptr, elements));
    TRY(const Tagging* tags, tagging(to));
    if (tasks_.dataflow && tasks_.buffers[static_cast<size_t>(b)].kind == BufferKind::kArena)
      return ok_status();  // copies are looked at below
    for (size_t p = 0; p < offsets.size(); ++p)
      TRY_STATUS(look(work, b, -1, offsets[p], tag_of(tags->storage, elements[p])));
    return ok_status();
  }

  /// Both operands of a GEMM: the product's strides beside the node's own loop form, whichever
  /// factor of it A is.
  Status read_product(size_t w, size_t slot) {
    const Status second = read_product(w, slot, 1);
    return second.ok() ? second : read_product(w, slot, 0);
  }
  /// `first`: which argument of the loop's multiplication is A.
  Status read_product(size_t w, size_t slot, int first_argument) {
    const Work& work = tasks_.works[w];
    const Group& group = plan_.groups[work.group];
    const stitch::Product& product = group.product;
    const std::optional<ops::Loop> form = ops::loop(graph_.call(group.anchor), 0);
    if (!form) return wrong(w, "its GEMM's node has no loop form");
    const Expr body = form->exprs[form->body];
    // Coordinates of the reduced dimensions, from the linear index of k.
    const auto reduced_from = static_cast<size_t>(form->parallel);
    int64_t depth = 1;
    for (size_t d = reduced_from; d < form->domain.size(); ++d) depth *= form->domain[d];
    if (product.k.size() != 1 || depth != product.k[0].extent)
      return wrong(w, fmt::format("its GEMM sums {} numbers, the node {}",
                                  product.k.empty() ? 0 : product.k[0].extent, depth));
    for (const int side : {0, 1}) {
      const Expr load = form->exprs[body.args[side == 0 ? first_argument : 1 - first_argument]];
      if (load.scalar != Scalar::kLoad)
        return wrong(w, "its GEMM's node is no product of two loads");
      std::vector<const stitch::Product::Dim*> dims;
      for (const auto* list : {&product.batch, &product.m, &product.n})
        for (const stitch::Product::Dim& dim : *list)
          if (side ? dim.b : dim.a) dims.push_back(&dim);
      const int64_t halves = side ? product.b_count() : 1;
      int64_t points = depth * halves;
      for (const auto* dim : dims) points *= dim->extent;
      const int64_t step = points > options_.most_points ? (points / options_.most_points) | 1 : 1;
      for (int64_t first = 0; first < points; first += kBatch * step) {
        Numbers offsets;
        std::vector<Numbers> at(form->domain.size());
        for (int64_t point = first; point < std::min(first + kBatch * step, points);
             point += step) {
          int64_t rest = point;
          int64_t k = rest % depth;
          rest /= depth;
          int64_t offset = (side ? product.b_offset : product.a_offset) +
                           k * (side ? product.k[0].b : product.k[0].a);
          std::vector<int64_t> domain(group.body.domain.size(), 0);
          for (size_t d = dims.size(); d-- > 0;) {
            const int64_t coordinate = rest % dims[d]->extent;
            rest /= dims[d]->extent;
            offset += coordinate * (side ? dims[d]->b : dims[d]->a);
            domain[static_cast<size_t>(dims[d]->c)] = coordinate;
          }
          if (halves > 1) {  // the second half's columns stand behind the first's
            offset += rest * product.n[0].extent * product.n[0].b;
            domain[static_cast<size_t>(product.n[0].c)] += rest * product.n[0].extent;
          }
          for (size_t d = 0; d < reduced_from; ++d)
            at[d].push_back(domain[static_cast<size_t>(group.anchor_coords[d])]);
          for (size_t d = form->domain.size(); d-- > reduced_from;)
            at[d].push_back(k % form->domain[d]), k /= form->domain[d];
          offsets.push_back(offset);
        }
        PointValues values(form->exprs, [](int) -> const Tensor* { return nullptr; });
        values.begin(at);
        std::vector<Numbers> coords;
        for (const ops::ExprId coord : load.coords) {
          if (!values.known(coord))
            return wrong(w, "an operand of its GEMM is read at computed places");
          coords.push_back(values[coord]);
        }
        TRY_STATUS(look_through(w, work.buffers[slot + static_cast<size_t>(side)],
                                graph_.node(group.anchor).inputs[static_cast<size_t>(load.slot)],
                                side ? product.b : product.a, std::move(coords), offsets));
      }
    }
    return ok_status();
  }

  /// Queries, keys and values: the tile's strides beside the node's inputs.
  Status read_attention(size_t w, size_t slot) {
    const Work& work = tasks_.works[w];
    const stitch::AttentionTile& tile = plan_.groups[work.group].attention;
    const graph::Node& node = graph_.node(plan_.groups[work.group].anchor);
    for (const int input : {0, 1, 2}) {
      const stitch::AttentionTile::Operand& operand = input == 0   ? tile.q
                                                      : input == 1 ? tile.k
                                                                   : tile.v;
      const Shape& shape = graph_.type(node.inputs[static_cast<size_t>(input)]).shape;
      const int64_t heads = tile.heads / (input == 0 ? 1 : tile.shared),
                    rows = input == 0 ? tile.queries : tile.keys;
      const int64_t columns = input == 2 ? tile.value_size : tile.size;
      // A few queries may be the heads that share keys: rows of the tile, heads of the graph.
      const bool by_head = input == 0 && shape.size() == 4 && shape[1] != heads;
      const int64_t points = tile.images * heads * rows * columns;
      const int64_t step = points > options_.most_points ? (points / options_.most_points) | 1 : 1;
      for (int64_t first = 0; first < points; first += kBatch * step) {
        Numbers offsets;
        std::vector<Numbers> at(shape.size());
        for (int64_t point = first; point < std::min(first + kBatch * step, points);
             point += step) {
          const int64_t column = point % columns, row = point / columns % rows,
                        head = point / columns / rows % heads;
          const int64_t image = point / columns / rows / heads;
          offsets.push_back(operand.offset + image * operand.image + head * operand.head +
                            row * operand.row + column * operand.column);
          if (shape.size() == 4) {
            const int64_t mine[] = {image, by_head ? head * rows + row : head, by_head ? 0 : row,
                                    column};
            for (size_t d = 0; d < 4; ++d) at[d].push_back(mine[d]);
          } else {
            const int64_t mine[] = {image, row, head * columns + column};
            for (size_t d = 0; d < 3; ++d) at[d].push_back(mine[d]);
          }
        }
        TRY_STATUS(look_through(w, work.buffers[slot + static_cast<size_t>(input)],
                                node.inputs[static_cast<size_t>(input)], operand.value,
                                std::move(at), offsets));
      }
    }
    if (tile.mask.value != graph::kNone && !tasks_.dataflow)
      return look_at_whole(w, work.buffers[slot + 3], -1, tile.mask.value);
    return ok_status();
  }

  /// A tile knows its rows by their number; its epilogue knows them by the folded domain. They are
  /// the same rows.
  Status check_tile_rows(const ObkTask& task) {
    const Work& work = tasks_.works[task.work];
    const Group& group = plan_.groups[work.group];
    if (group.kind == GroupKind::kStitched) return ok_status();
    const Points points = points_of(work.nest, task.r0, task.r1, 0, 1);
    if (group.kind == GroupKind::kProduct) {
      if (const Access* a = work.nest.of_product(group, 0)) {
        const Numbers offsets = offsets_of(*a, points);
        const std::vector<Numbers> coords = coords_of(group.body, work.nest, points);
        const int64_t next =
            work.nest.rows > 0 ? a->strides[static_cast<size_t>(work.nest.rows) - 1] : 0;
        for (size_t p = 0; p < offsets.size(); ++p) {
          int64_t meant = group.product.a_offset;
          for (const auto* list : {&group.product.batch, &group.product.m})
            for (const stitch::Product::Dim& dim : *list)
              meant += dim.a * coords[static_cast<size_t>(dim.c)][p];
          const int64_t walked = offsets[0] + static_cast<int64_t>(p) * next;
          if (offsets[p] != meant || walked != meant)
            return wrong(
                task.work,
                fmt::format("row {} of its tile begins at element {} of A, its epilogue means {}",
                            task.r0 + static_cast<int64_t>(p), walked, meant));
        }
      }
      return ok_status();
    }
    const std::vector<Numbers> coords = coords_of(group.body, work.nest, points);
    const Shape& domain = group.body.domain;
    const int column =
        group.kind == GroupKind::kConv ? group.anchor_coords[1] : group.anchor_coords.back();
    for (size_t p = 0; p < points.count(); ++p) {
      int64_t row = 0;
      for (const int slot : group.anchor_coords)
        if (slot != column)
          row = row * domain[static_cast<size_t>(slot)] + coords[static_cast<size_t>(slot)][p];
      if (row != task.r0 + static_cast<int64_t>(p))
        return wrong(task.work, fmt::format("row {} of its tile is row {} of its epilogue",
                                            task.r0 + static_cast<int64_t>(p), row));
    }
    return ok_status();
  }

  // ---- stores --------------------------------------------------------------------------------------------------------

  Status store(const ObkTask& task, int sm) {
    const Work& work = tasks_.works[task.work];
    const Group& group = plan_.groups[work.group];
    if (stitch::calls_op(group.kind)) return ok_status();
    PointValues values = values_of(group);
    for (const Access& access : work.nest.accesses) {
      if (access.step < 0) continue;
      const Step& step = group.body.steps[static_cast<size_t>(access.step)];
      if (step.per_row && work.nest.cut_columns && task.c0 != 0)
        continue;  // of the tiles of a row one stores it
      const ValueId value = group.body.operands[static_cast<size_t>(step.slot)];
      const int b = work.buffers[static_cast<size_t>(step.slot)];
      if (tasks_.dataflow && work.replicated() &&
          tasks_.buffers[static_cast<size_t>(b)].kind == BufferKind::kArena &&
          tasks_.buffers[static_cast<size_t>(b)].reach == Reach::kAll)
        continue;  // validate_dataflow follows these
      TRY(const Tagging* tags, tagging(value));
      TRY_STATUS(batches(
          work, group.body, task, step.per_row, 1,
          [&](const Points& points, std::vector<Numbers> coords) -> Status {
            values.begin(std::move(coords));
            std::vector<const Numbers*> at;
            for (const ops::ExprId coord : step.at) {
              if (!values.known(coord))
                return wrong(task.work,
                             fmt::format("stores %{} at places that depend on data", value));
              at.push_back(&values[coord]);
            }
            Numbers elements(points.count(), 0);
            TRY_STATUS(tags_at(task.work, value, at, nullptr, elements));
            const Numbers offsets =
                access.affine ? offsets_of(access, points) : laid_out(value, at, points.count());
            for (size_t p = 0; p < offsets.size(); ++p)
              TRY_STATUS(put(task.work, b, sm, offsets[p], tag_of(tags->storage, elements[p])));
            return ok_status();
          }));
    }
    return ok_status();
  }

  /// What ops that are called store, and partial statistics: whole, when their wave ends.
  Status store_whole() {
    for (size_t w = 0; w < tasks_.works.size(); ++w) {
      const Work& work = tasks_.works[w];
      const Group& group = plan_.groups[work.group];
      if (work.wave != wave_) continue;
      if (stitch::calls_op(group.kind))
        for (const WorkAccess& access : accesses_of(graph_, plan_, work).stores)
          TRY_STATUS(each_element(access.value, [&](int64_t offset, Tag tag) {
            return put(w, work.buffers[access.slot], -1, offset, tag);
          }));
      for (const bool leaves : {true, false}) {
        if (leaves ? group.partials == graph::kNone : !group.product.statistics.of_partials)
          continue;
        const int b = work.buffers[static_cast<size_t>(leaves ? work.left_partials(group)
                                                              : work.read_partials(group))];
        const ValueId value = leaves ? group.partials : group.product.a;
        const int64_t count = tasks_.buffers[static_cast<size_t>(b)].type.count();
        for (int64_t k = 0; k < count; ++k) {
          const Tag tag = tag_of(graph_.value_count() + value, k);
          TRY_STATUS(leaves ? put(w, b, -1, k, tag) : look(w, b, -1, k, tag));
        }
      }
    }
    return ok_status();
  }

  Status check_end() {
    for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
      const Buffer& buffer = tasks_.buffers[b];
      if (is_kept(buffer)) {
        for (int64_t at = 0; at < buffer.size.count; at += arena_.unit)
          if (arena_.tags[unit_at(buffer, at)] != kept_tag(b))
            return end_error(fmt::format("bytes that last from run to run hold {}",
                                         text_of(arena_.tags[unit_at(buffer, at)])));
      }
      if (buffer.kind != BufferKind::kOutput) continue;
      TRY_STATUS(each_element(buffer.value, [&](int64_t offset, Tag tag) -> Status {
        const int64_t width = bits(buffer.type.dtype);
        if (width < 8) tag -= static_cast<Tag>(offset % (8 / width));
        const Tag found =
            outputs_[b].tags[static_cast<size_t>(width < 8 ? offset * width / 8 : offset)];
        return found == tag
                   ? ok_status()
                   : Status(end_error(fmt::format("output %{} holds {} where {} is meant",
                                                  buffer.value, text_of(found), text_of(tag))));
      }));
    }
    return ok_status();
  }
  static Error end_error(std::string text) {
    return Error{Code::kBuild, "schedule", "shadow run, at the end: " + std::move(text), "",
                 "this is a defect of Obelisk; please report it with the model"};
  }

  const Graph& graph_;
  const stitch::Plan& plan_;
  const TaskGraph& tasks_;
  const ShadowOptions& options_;
  int32_t wave_ = 0;
  Area arena_;
  std::vector<Area> outputs_;  // by buffer
  std::vector<Area> copies_;   // of a dataflow program: each worker's copies
  std::vector<std::set<int>> gathered_;
  std::set<std::tuple<int, int, ValueId>> whole_;  // values that a work was seen to have whole
  std::vector<Tagging> taggings_;
};

}  // namespace

Status shadow_run(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks,
                  const ShadowOptions& options) {
  return Shadow(graph, plan, tasks, options).run();
}

}  // namespace obelisk::schedule
