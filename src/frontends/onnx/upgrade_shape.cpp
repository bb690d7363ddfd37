#include <algorithm>
#include <numeric>

#include "frontends/onnx/handlers.h"

namespace obelisk::frontends::onnx {

void import_constant(Site& site) {
  for (const auto& [name, value] : site.attrs.all()) {
    if (name == "value" || name == "sparse_value") {
      if (const Tensor* tensor = std::get_if<Tensor>(&value)) return site.finish(Item::of(*tensor));
    } else if (name == "value_int") {
      return site.finish(Item::of(tensor_of({site.attrs.get_int(name, 0)}).reshaped({})));
    } else if (name == "value_ints") {
      return site.finish(site.vector(site.attrs.get_ints(name)));
    } else if (name == "value_float") {
      return site.finish(site.scalar(DType::f32, site.attrs.get_float(name, 0)));
    } else if (name == "value_floats") {
      const std::vector<double> values = site.attrs.get_floats(name);
      return site.finish(
          Item::of(tensor_of(DType::f32, {static_cast<int64_t>(values.size())}, values)));
    } else if (name == "value_string" || name == "value_strings") {
      return site.refuse("its value is a string", "only numbers and booleans can be run");
    }
  }
  site.contradict("it has no value");
}

void import_identity(Site& site) {
  if (site.inputs.size() != 1) return site.contradict("it takes one input");
  site.finish(site.in(0));
}

/// Known whatever the values are, because types are.
void import_shape(Site& site) {
  if (!site.in(0).is_tensor()) return site.contradict("it takes a tensor");
  const int64_t rank = site.rank(0);
  const auto clamp = [&](int64_t axis) {
    return std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank);
  };
  const int64_t start = clamp(site.attrs.get_int("start", 0));
  const int64_t end = std::max(start, clamp(site.attrs.get_int("end", rank)));
  const Shape& shape = site.shape(0);
  site.finish(site.vector({shape.begin() + start, shape.begin() + end}));
}

void import_size(Site& site) {
  if (!site.in(0).is_tensor()) return site.contradict("it takes a tensor");
  site.finish(Item::of(tensor_of({site.type(0).count()}).reshaped({})));
}

void import_reshape(Site& site) {
  if (site.opset < 5) {
    site.inputs = {site.in(0), site.vector(site.attrs.get_ints("shape"))};
    site.attrs = {};
  }
  site.pass_through();
}

void import_axes_input(Site& site) {
  if (site.attrs.has("axes") && site.inputs.size() == 1) {
    site.inputs.push_back(site.vector(site.attrs.get_ints("axes")));
    site.attrs.erase("axes");
  }
  site.pass_through();
}

void import_slice(Site& site) {
  if (site.opset < 10) {
    const std::vector<int64_t> starts = site.attrs.get_ints("starts"),
                               ends = site.attrs.get_ints("ends");
    std::vector<int64_t> axes(starts.size());
    std::iota(axes.begin(), axes.end(), 0);
    site.inputs = {site.in(0), site.vector(starts), site.vector(ends),
                   site.vector(site.attrs.get_ints("axes", axes))};
    site.attrs = {};
  }
  site.pass_through();
}

/// Sizes were an attribute, and equal parts were given by the number of outputs alone.
void import_split(Site& site) {
  if (site.attrs.has("split") && site.inputs.size() == 1)
    site.inputs.push_back(site.vector(site.attrs.get_ints("split")));
  site.attrs.erase("split");
  const auto parts = static_cast<int64_t>(site.node.outputs.size());
  if (!site.has(1) && !site.attrs.has("num_outputs")) site.attrs.set("num_outputs", parts);
  site.outputs = site.emit("Split", site.inputs, site.attrs, static_cast<int>(parts));
}

void import_pad(Site& site) {
  if (site.opset < 11) {
    const char* name = site.opset < 2 ? "paddings" : "pads";
    site.inputs = {site.in(0), site.vector(site.attrs.get_ints(name)),
                   site.scalar(site.type(0).dtype, site.attrs.get_float("value", 0))};
    const std::string mode = site.attrs.get_string("mode", "constant");
    site.attrs = ops::Attrs().set("mode", mode);
  }
  site.pass_through();
}

/// Version 1 repeated one axis, given by two scalar inputs.
void import_tile(Site& site) {
  if (site.opset < 6) {
    const std::vector<int64_t> tiles = site.ints(1, "tiles"), axes = site.ints(2, "axis");
    if (!site.ok()) return;
    if (tiles.size() != 1 || axes.size() != 1)
      return site.contradict("tiles and axis are not scalars");
    std::vector<int64_t> repeats(site.rank(0), 1);
    const int64_t axis = site.axis(axes[0], site.rank(0));
    if (!site.ok()) return;
    repeats[axis] = tiles[0];
    site.inputs = {site.in(0), site.vector(repeats)};
  }
  site.pass_through();
}

void import_top_k(Site& site) {
  if (site.opset < 10) {
    site.inputs = {site.in(0), site.vector({site.attrs.get_int("k", 0)})};
    site.attrs.erase("k");
  }
  site.pass_through();
}

/// The older name of ScatterElements.
void import_scatter(Site& site) {
  site.finish(site.emit("ScatterElements", site.inputs, site.attrs));
}

}  // namespace obelisk::frontends::onnx
