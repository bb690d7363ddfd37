/// codegen/body_emitter.h — what writes one body; body.h says what that is. Each of the files that
/// a heading names decides one thing and defines what stands below it.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "codegen/body.h"
#include "codegen/tile.h"
#include "codegen/tile_gemm_pipelined.h"
#include "codegen/vectors.h"

namespace obelisk::codegen {

using ops::Combine;
using ops::Expr;
using ops::ExprId;
using ops::Exprs;
using ops::kNoExpr;
using ops::Scalar;
using schedule::Access;
using schedule::Nest;
using stitch::GroupKind;
using stitch::Step;
using stitch::StepKind;

class BodyEmitter {
 public:
  BodyEmitter(const graph::Graph& graph, const stitch::Group& group, const schedule::Work& work,
              bool packed_b, const kernels::TileLibrary& tiles);

  EmittedBody run();

  const std::vector<stitch::Layout>* layouts_ = nullptr;
  int64_t ahead_bytes_ = 0;

 private:
  /// Where an expression is printed: once a row, once a walk of the outer columns, or for every
  /// lane.
  enum Level { kRow = 0, kColumn = 1, kLane = 2 };

  // ---- body.cpp: what a body consists of
  std::optional<VectorText> as_vectors();
  void head(bool walks_lanes);
  int64_t tile_pitch() const { return pitch_of_tile(group_, work_, tiles_, packed_b_); }

  // ---- body_names.cpp
  std::string param(int64_t value);
  std::string var(int dim) const;
  const std::string& extent(int dim);
  std::string pointer(int operand, bool store);
  std::string stride(const Access& access, size_t dim);
  std::string decode(const std::string& from, const std::string& indent, bool all);
  Level level_of_dim(int dim) const {
    if (dim == lane_) return kLane;
    return dim < nest_.rows ? kRow : kColumn;
  }

  // ---- body_form.cpp
  /// What stands before the first load of anything but weights.
  enum class Begin { kAtOnce, kPipelinedGemm, kAlone, kRows, kWave };
  bool pipelined() const;
  Begin how_it_begins() const;
  std::string begin() const;
  void set_form(int ctas_per_sm);
  bool loads_rows() const;
  bool waits_in_body() const { return work_.list() && work_.list()->waits_in_body; }
  int64_t planes() const { return pipelined() ? pipelined_planes(group_, work_) : 1; }

  // ---- lane_expressions.cpp
  struct LevelRules;
  Level level(ExprId id);
  std::string value(ExprId id);
  std::string constant(const Expr& expr);
  std::string float_param(const Expr& expr);
  std::string load(ExprId id, const Expr& expr);
  std::string affine_offset(const Access& access, const std::string& key, Level deepest);
  std::string computed_offset(const Expr& expr);
  std::string offset_text(const stitch::Layout& layout, const std::vector<ExprId>& coords);
  void line(Level at, const std::string& text) { lines_[at].push_back(text); }

  // ---- body_lanes.cpp
  void rows();
  void row_stores(int pass);
  std::string store(size_t s);
  Level deepest(const Access& access) const;
  std::string held(std::string_view name, int slot) const;
  void begin_segment();
  void flush(Level at, const std::string& indent);
  void segment(int pass);
  std::string update(const Step& step, const std::string& term, std::string& clauses) const;
  void begin_reduction(const Step& step, const std::string& indent);
  void end_reduction(const Step& step, const std::string& indent);
  bool finish_levels(ExprId id);
  void forget(ExprId id);
  void columns(const std::string& outer, const std::string& clauses);
  void lane_statement(const std::string& text) { lines_[kLane].push_back(text); }

  // ---- tile_gemm.cpp, tile_conv.cpp, tile_attention.cpp: the anchor's tile
  void product(bool vectors);
  ObkGemm gemm_shape(int64_t a_row) const;
  std::string gemm_call(const ObkGemm& shape, const std::string& type, const Access& a);
  bool streams() const;
  std::string streamed_call(const std::string& type);
  void conv();
  std::string conv_ahead() const;
  bool conv_is_static() const;
  void attention(bool begins_here);

  const graph::Graph& graph_;
  const stitch::Group& group_;
  const stitch::Body& body_;
  const Exprs& exprs_;
  const schedule::Work& work_;
  const Nest& nest_;
  const bool packed_b_;
  const kernels::TileLibrary& tiles_;
  int lane_ = -1;  // the folded dimension that the vector runs over
  bool direct_ = false;
  bool shapes_ = false;
  int names_ = 0, param_names_ = 0;
  int64_t scratch_ = 0, stage_ = 0;  // of the tile; of a row
  std::vector<size_t> stage_params_;
  std::string pitch_;          // the tile's: elements from row to row
  std::map<int, int> dim_of_;  // domain coordinate → folded dimension
  std::map<ExprId, const Access*> load_access_;
  std::map<int, const Access*> store_access_;
  std::map<ExprId, Level> level_;
  std::map<ExprId, std::string> named_[3], held_rows_;
  std::map<std::string, std::string> offsets_[3];
  std::map<std::pair<const Access*, size_t>, std::string> stride_;
  std::map<int, std::string> extent_, pointer_;
  std::vector<std::string> lines_[3];
  std::vector<int64_t> params_;
  BodyTraits traits_;
  std::string top_, out_, acc_;
};

}  // namespace obelisk::codegen
