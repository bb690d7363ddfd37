#include <algorithm>
#include <numeric>

#include "frontends/onnx/handlers.h"

namespace obelisk::frontends::onnx {

/// Before version 13 the input was seen as a matrix, all axes from `axis` (1) on being its columns:
///   Softmax(x[2,3,4], axis = 1)  →  Reshape(Softmax(Reshape(x, [2,12]), axis = -1), [2,3,4])
void import_softmax(Site& site) {
  if (site.opset >= 13 || !site.in(0).is_tensor()) return site.pass_through();
  const Shape shape = site.shape(0);
  const auto rank = static_cast<int64_t>(shape.size());
  const int64_t given = site.attrs.get_int("axis", 1);
  if (given < -rank || given > rank)
    return site.contradict(fmt::format("axis {} but the input has rank {}", given, rank));
  const int64_t axis = given < 0 ? given + rank : given;
  const ops::Attrs last = ops::Attrs().set("axis", -1);
  if (axis == rank - 1) return site.finish(site.emit(site.op, {site.in(0)}, last));
  const Shape rows(shape.begin(), shape.begin() + axis), columns(shape.begin() + axis, shape.end());
  const Item matrix = site.reshape(site.in(0), {element_count(rows), element_count(columns)});
  site.finish(site.reshape(site.emit(site.op, {matrix}, last), shape));
}

/// Versions below 14 train where they have more outputs, those below 7 by is_test.
/// `spatial = 0` has statistics per element, which is plain arithmetic.
void import_batch_norm(Site& site) {
  const bool per_element = site.opset < 9 && site.attrs.get_int("spatial", 1) == 0;
  for (const char* old : {"is_test", "spatial", "consumed_inputs"}) site.attrs.erase(old);
  if (site.opset >= 14) return site.pass_through();
  if (site.wanted() > 1)
    return site.refuse("it learns its statistics, as in training",
                       "export the model for inference");
  if (!per_element) return site.pass_through();
  const auto row = [&](int input) {
    Shape shape = site.shape(input);
    shape.insert(shape.begin(), 1);
    return site.reshape(site.in(input), shape);
  };
  const Item epsilon = site.scalar(site.type(0).dtype, site.attrs.get_float("epsilon", 1e-5));
  const Item deviation = site.emit("Sqrt", {site.emit("Add", {row(4), epsilon})});
  const Item normal = site.emit("Div", {site.emit("Sub", {site.in(0), row(3)}), deviation});
  site.finish(site.emit("Add", {site.emit("Mul", {normal, row(1)}), row(2)}));
}

/// Before version 21 scale and bias belonged to groups; now they belong to channels.
void import_group_norm(Site& site) {
  if (site.opset < 21 && site.inputs.size() == 3 && site.rank(0) >= 2 && site.rank(1) == 1) {
    const int64_t channels = site.shape(0)[1], groups = site.attrs.get_int("num_groups", 1);
    if (groups <= 0 || channels % groups != 0)
      return site.contradict(fmt::format("{} channels do not make {} groups", channels, groups));
    if (site.shape(1) == Shape{groups} && site.shape(2) == Shape{groups} && groups != channels)
      for (const int input : {1, 2})
        site.inputs[input] = site.reshape(
            site.expand(site.reshape(site.in(input), {groups, 1}), {groups, channels / groups}),
            {channels});
  }
  site.pass_through();
}

/// Before version 7 the third input was spread by an attribute; the rule is the same.
void import_gemm(Site& site) {
  site.attrs.erase("broadcast");
  site.pass_through();
}

/// Version 10 knew one way to map coordinates. From 11 on an empty roi or scales means that it is
/// not given.
void import_resize(Site& site) {
  if (site.opset < 11) return import_upsample(site);
  for (const int input : {1, 2, 3})
    if (site.in(input).is_tensor() && site.type(input).count() == 0) site.inputs[input] = {};
  site.pass_through();
}

/// Upsample and the first Resize: output o reads input o / scale, rounded down where it shrinks
/// nothing, else up.
void import_upsample(Site& site) {
  Item scales;
  if (site.attrs.has("scales")) {
    const std::vector<double> values = site.attrs.get_floats("scales");
    scales = Item::of(tensor_of(DType::f32, {static_cast<int64_t>(values.size())}, values));
  } else if (site.attrs.has("height_scale")) {
    scales = Item::of(tensor_of(
        DType::f32, {4},
        {1, 1, site.attrs.get_float("height_scale", 1), site.attrs.get_float("width_scale", 1)}));
  } else {
    scales = site.in(1);
  }
  if (!scales.is_constant())
    return site.refuse(
        "scales (input 1) depends on data",
        "make it a constant, or bind the value of the model's input that it comes from");
  bool shrinks = false;
  for (int64_t axis = 0; axis < scales.constant.count(); ++axis)
    shrinks = shrinks || scales.constant.get_double(axis) < 1;
  std::string mode = site.attrs.get_string("mode", "nearest");
  if (mode == "bilinear") mode = "linear";
  const ops::Attrs attrs = ops::Attrs()
                               .set("mode", mode)
                               .set("coordinate_transformation_mode", "asymmetric")
                               .set("nearest_mode", shrinks ? "ceil" : "floor");
  site.finish(site.emit("Resize", {site.in(0), {}, scales}, attrs));
}

/// Version 1 had a real p.
void import_lp_pool(Site& site) {
  if (site.attrs.has("p")) {
    const double p = site.attrs.get_float("p", 2);
    if (!(p >= 1 && p <= 0x1p31))
      return site.contradict(fmt::format("p = {}, wanted at least 1", p));
    site.attrs.set("p", static_cast<int64_t>(p));
  }
  site.pass_through();
}

/// Before version 20 the axis was an attribute, 1 when not given.
void import_dft(Site& site) {
  if (site.opset < 20) {
    const int64_t axis = site.attrs.get_int("axis", 1);
    site.inputs.resize(2);
    site.inputs.push_back(Item::of(tensor_of({axis}).reshaped({})));
    site.attrs.erase("axis");
  }
  site.pass_through();
}

void import_recurrent(Site& site) {
  site.attrs.erase("output_sequence");  // version 1; which outputs there are says the same
  site.pass_through();
}

}  // namespace obelisk::frontends::onnx
