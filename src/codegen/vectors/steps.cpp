// Steps as text: reductions, staged values, stores.
#include "codegen/reductions.h"
#include "codegen/scalars.h"
#include "codegen/vectors/emitter.h"

namespace obelisk::codegen {

void VectorEmitter::row_stores(int pass, std::string& out, const std::string& indent) {
  row_values(pass, out, indent);
  std::string arrays, after;
  for (size_t s = 0; s < body_.steps.size(); ++s) {
    const Step& step = body_.steps[s];
    if (step.kind != StepKind::kStore || !step.per_row || step.pass != pass) continue;
    if (across_) {
      store(s, "there[q] && slice == 0", indent, arrays, after);
      continue;
    }  // one warp of many is enough
    const Access& access = *store_access_.at(static_cast<int>(s));
    const std::string stored = value(step.expr);
    const std::string where = access.affine
                                  ? affine_text(access, false)
                                  : offset_text(job_.layouts[body_.operands[step.slot]], step.at);
    statements_.push_back(fmt::format("if (there[q] && {}) obk::store({}, {}, ({}){});",
                                      flat_            ? "col[q] == 0"
                                      : keeps_columns_ ? "col[0] == 0"
                                                       : "lane == 0",
                                      job_.pointer(step.slot, true), where,
                                      arithmetic_name(stored_type(step)), stored));
  }
  if (statements_.empty() && element_statements_.empty()) return;
  out += indent + "OBK_EACH(q, R) {\n" + arrays;
  finish_loop(out, indent, after);
}

/// A value of each element, as a pack where the place allows it: `arrays` before the elements,
/// `after` behind them.
void VectorEmitter::store(size_t s, const std::string& condition, const std::string& indent,
                          std::string& arrays, std::string& after) {
  const Step& step = body_.steps[s];
  const Access& access = *store_access_.at(static_cast<int>(s));
  const DType dtype = stored_type(step);
  const std::string array = fmt::format("o{}", s), value_of = value(step.expr);
  std::string call;
  if (store_packs(access, v_)) {
    const std::string where = affine_text(access, false);
    call = fmt::format("if ({}) {}{}, {}, {});", condition,
                       job_.gives_to_all(step) ? "OBK_GIVE_PACK(V, " : "obk::store_pack<V>(",
                       job_.pointer(step.slot, true), where, array);
    if (flat_or_down() && body_.operands[step.slot] == job_.partials &&
        v_ <= stitch::kPartialColumns && slots_ == 0) {
      call += fmt::format("\n{}  obk::give_partials<{}>(partials, ({}) / {}, {}, {});", indent,
                          storage_name(dtype), where, stitch::kPartialColumns, condition, array);
      gives_partials_ = true;
    }
  } else {
    const stitch::Layout& layout = job_.layouts[body_.operands[step.slot]];
    const std::string where =
        access.affine ? affine_text(access, true) : offset_text(layout, step.at);
    element_statements_.push_back(fmt::format("if ({}) obk::store({}, {}, ({}){});", condition,
                                              job_.pointer(step.slot, true), where,
                                              arithmetic_name(dtype), value_of));
    return;
  }
  arrays += fmt::format("{}  {} {}[V];\n", indent, arithmetic_name(dtype), array);
  element_statements_.push_back(
      fmt::format("{}[v] = ({}){};", array, arithmetic_name(dtype), value_of));
  after += indent + "  " + call + "\n";
}

/// One walk over the batch: every reduction, staged value and store of this pass.
void VectorEmitter::segment(int pass, std::string& out, const std::string& indent,
                            std::string* walk) {
  std::vector<size_t> steps;
  for (size_t s = 0; s < body_.steps.size(); ++s)
    if (!body_.steps[s].per_row && body_.steps[s].pass == pass) steps.push_back(s);
  if (steps.empty()) return;
  begin();
  std::string declared, after, arrays, outside;
  std::vector<const Step*> reductions;
  for (size_t s : steps) {
    const Step& step = body_.steps[s];
    if (step.kind == StepKind::kStore) {
      store(s, across_ || !flat_ ? "there[q] && here[u]" : "there[q]", indent, arrays, after);
      continue;
    }
    const std::string value_of = value(step.expr);
    if (step.kind == StepKind::kStage) {
      declared += fmt::format("{}{} g{}[R][U][V];\n", indent,
                              arithmetic_name(body_.stage_types[step.slot]), step.slot);
      element_statements_.push_back(fmt::format("g{}[q][u][v] = {};", step.slot, value_of));
      staged_here_[step.slot] = value_of;
      continue;
    }
    const std::string accumulator = fmt::format("v{}[q]{}", step.slot, across_ ? "[v]" : "");
    (across_ ? outside : declared) +=
        fmt::format("{0}{1} v{2}[R]{3};\n{0}OBK_EACH(q, R) {4}v{2}[q]{5} = {6};\n",
                    across_ ? "    " : indent, accumulator_name(exprs_[step.expr].dtype), step.slot,
                    across_ ? "[V]" : "", across_ ? "OBK_EACH(v, V) " : "", across_ ? "[v]" : "",
                    identity_text(step.combine, exprs_[step.expr].dtype));
    element_statements_.push_back(
        fmt::format("if (here[u]) {}",
                    update_text(step.combine, accumulator, value_of, exprs_[step.expr].dtype)));
    reductions.push_back(&step);
  }
  for (ExprId load : unpacked_anew(pass))
    declared +=
        fmt::format("{}OBK_EACH(q, R) OBK_EACH(u, U) obk::unpack_anew(l{}[q][u]);\n", indent, load);
  std::string body = declared + indent + "OBK_EACH(q, R) OBK_EACH(u, U) {\n" + arrays;
  finish_loop(body, indent, after);
  if (walk)
    out += outside + *walk + body + "    }\n";
  else
    out += body;
  for (const Step* step : reductions) end_reduction(*step, out, walk ? "    " : indent);
}

void VectorEmitter::end_reduction(const Step& step, std::string& out, const std::string& indent) {
  begin();
  const std::string type = arithmetic_name(body_.row_types[step.slot]);
  if (across_) {
    out += fmt::format(
        "{0}{1} w{2}[R][V];\n{0}OBK_JOIN_SLICES({3}, {4}, v{2});\n{0}OBK_EACH(q, R) {{\n", indent,
        type, step.slot, slices(), join_name(step.combine));
    acc_ = fmt::format("v{}[q][v]", step.slot);
    const std::string result = value(step.finish);
    element_statements_.push_back(fmt::format("w{}[q][v] = ({}){};", step.slot, type, result));
    return finish_loop(out, indent);
  }
  out += fmt::format("{}{} w{}[R];\n", indent, type, step.slot);
  out += indent + "OBK_EACH(q, R) {\n";
  out += fmt::format("{}  v{}[q] = OBK_JOINED({}, {}, v{}[q]);\n", indent, step.slot, lanes_,
                     join_name(step.combine), step.slot);
  acc_ = fmt::format("v{}[q]", step.slot);
  const std::string result = value(step.finish);
  statements_.push_back(fmt::format("w{}[q] = ({}){};", step.slot, type, result));
  finish_loop(out, indent);
}

void VectorEmitter::row_values(int pass, std::string& out, const std::string& indent) {
  begin();
  for (const Step& step : body_.steps) {
    if (step.kind != StepKind::kRow || step.pass != pass) continue;
    const std::string type = arithmetic_name(body_.row_types[step.slot]), given = value(step.expr);
    out += fmt::format("{0}{1} w{2}[R];\n{0}OBK_EACH(q, R) {{\n", indent, type, step.slot);
    statements_.push_back(fmt::format("w{}[q] = ({}){};", step.slot, type, given));
    finish_loop(out, indent);
  }
}

}  // namespace obelisk::codegen
