/// schedule/shadow.h — the class behind shadow_run.h; a ruler names the file that defines what
/// stands below it.
#pragma once

#include <map>
#include <set>

#include "schedule/point_values.h"
#include "schedule/shadow_run.h"

namespace obelisk::schedule::shadow {

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

inline constexpr int kElementBits = 40;
inline constexpr int64_t kBatch = 4096;  // points evaluated at once

inline Tag tag_of(int64_t storage, int64_t element) {
  return (static_cast<Tag>(storage) + 1) << kElementBits | static_cast<Tag>(element);
}
inline std::string text_of(Tag tag) {
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
  Status run();

 private:
  // ---- memory: shadow_memory.cpp

  Status prepare();
  /// Bytes that blocks and attention's pieces exchange: nobody else may store there.
  static bool is_kept(const Buffer& buffer);
  Tag kept_tag(size_t b) const;
  size_t unit_at(const Buffer& buffer, int64_t byte) const;

  Result<const Tagging*> tagging(ValueId value);

  Error wrong(size_t work, std::string text) const;
  using NodeName = std::string;
  NodeName name_of(size_t work) const;

  /// Where buffer `b` is for worker `sm`: the memory and the byte at which it begins there. Nothing
  /// for inputs and weights.
  struct Place {
    Area* area = nullptr;
    int64_t begin = 0;
  };
  Place place(int b, int sm);

  /// One element is read from `offset` (in elements) of a work's buffer, where `tag` is meant to
  /// stand.
  Status look(size_t work, int b, int sm, int64_t offset, Tag tag);

  Status put(size_t work, int b, int sm, int64_t offset, Tag tag);

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
  Status look_at_whole(size_t work, int b, int sm, ValueId value);

  // ---- points, reads: shadow_reads.cpp

  /// Points of rows [r0, r1) (each `step`-th) and linear columns [c0, c1).
  static Points points_of(const Nest& nest, int64_t r0, int64_t r1, int64_t c0, int64_t c1);
  /// The coordinates of the body's domain at those points.
  static std::vector<Numbers> coords_of(const Body& body, const Nest& nest, const Points& points);
  static Numbers offsets_of(const Access& access, const Points& points);

  PointValues values_of(const Group& group) const;

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

  /// Tags of the element of `value` at the coordinates; outside of it an error of the work.
  Status tags_at(size_t work, ValueId value, const std::vector<const Numbers*>& at,
                 const Numbers* guard, Numbers& elements);

  Status read(const ObkTask& task, int sm);

  bool moves_with_columns(const Work& work, const Body& body, ops::ExprId id);

  Status read_load(size_t w, int sm, const Access& access, const Points& points,
                   PointValues& values);

  Numbers laid_out(ValueId value, const std::vector<const Numbers*>& at, size_t points) const;

  /// What is given to all workers comes into the worker's copy before the first task that reads it.
  Status gather(const ObkTask& task, int sm);

  // ---- operands of tiles and of ops that are called: shadow_operands.cpp

  /// Once a work, in its wave: every element that its tiles read, as the graph means it.
  Status read_operands();

  /// Follows an element of `from` through moves to `to`; coordinates are replaced.
  Status follow(size_t work, ValueId from, ValueId to, std::vector<Numbers>& at);

  /// Elements at coordinates of `from`, which an operand `to` has at `offsets` of its storage.
  Status look_through(size_t work, int b, ValueId from, ValueId to, std::vector<Numbers> at,
                      const Numbers& offsets);

  /// Both operands of a GEMM: the product's strides beside the node's own loop form, whichever
  /// factor of it A is.
  Status read_product(size_t w, size_t slot);
  /// `first`: which argument of the loop's multiplication is A.
  Status read_product(size_t w, size_t slot, int first_argument);

  /// Queries, keys and values: the tile's strides beside the node's inputs.
  Status read_attention(size_t w, size_t slot);

  /// A tile knows its rows by their number; its epilogue knows them by the folded domain. They are
  /// the same rows.
  Status check_tile_rows(const ObkTask& task);

  // ---- stores: shadow_stores.cpp

  Status store(const ObkTask& task, int sm);

  /// What ops that are called store, and partial statistics: whole, when their wave ends.
  Status store_whole();

  Status check_end();
  static Error end_error(std::string text);

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
  /// Of inputs whose memory outputs take, by value: the last wave that read it, and that in which
  /// the output overwrote it; -1: none.
  struct InputWaves {
    int32_t read_in = -1, overwritten_in = -1;
  };
  std::map<ValueId, InputWaves> overwritten_;
};

}  // namespace obelisk::schedule::shadow
