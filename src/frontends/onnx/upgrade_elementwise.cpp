#include "frontends/onnx/handlers.h"

namespace obelisk::frontends::onnx {

/// Before version 7 the second input was laid along `axis` of the first (its last axes when not
/// given):
///   Add(x[2,3,4,5], y[3,4], broadcast = 1, axis = 1)  →  Add(x, Reshape(y, [3,4,1]))
void import_binary(Site& site) {
  if (site.opset < 7 && site.inputs.size() == 2) {
    if (site.attrs.get_int("broadcast", 0) != 0 && site.attrs.has("axis")) {
      const int64_t axis = site.attrs.get_int("axis", 0);
      const int64_t start = axis < 0 ? axis + site.rank(0) : axis;
      const int64_t last = site.rank(0) - site.rank(1);
      if (start < 0 || start > last)
        return site.contradict(fmt::format("axis {} does not lay {} along {}", axis,
                                           to_string(site.shape(1)), to_string(site.shape(0))));
      Shape shape = site.shape(1);
      shape.insert(shape.end(), last - start, 1);
      site.inputs[1] = site.reshape(site.in(1), shape);
    }
    site.attrs.erase("broadcast");
    site.attrs.erase("axis");
    site.attrs.erase("consumed_inputs");
  }
  site.pass_through();
}

/// Before version 7 a slope of [C] belonged to axis 1.
void import_prelu(Site& site) {
  if (site.opset < 7 && site.inputs.size() == 2 && site.rank(1) == 1 && site.rank(0) > 2 &&
      site.shape(1)[0] != 1) {
    Shape shape(site.rank(0) - 1, 1);
    shape[0] = site.shape(1)[0];
    site.inputs[1] = site.reshape(site.in(1), shape);
  }
  site.attrs.erase("consumed_inputs");
  site.pass_through();
}

void import_clip(Site& site) {
  if (site.opset < 11) {
    const auto bound = [&](const char* name) {
      return site.attrs.has(name) ? site.scalar(site.type(0).dtype, site.attrs.get_float(name, 0))
                                  : Item();
    };
    site.inputs = {site.in(0), bound("min"), bound("max")};
    site.attrs = {};
  }
  site.pass_through();
}

/// Before version 6 the type was given by its name.
void import_cast(Site& site) {
  int64_t number = site.attrs.get_int("to", 0);
  const std::string name = site.attrs.get_string("to", "");
  for (int type = 1; type <= static_cast<int>(ElementType::kInt2) && !name.empty(); ++type) {
    std::string known = to_string(static_cast<ElementType>(type));
    for (char& letter : known) letter = static_cast<char>(std::toupper(letter));
    if (known == name) number = type;
  }
  const std::optional<DType> dtype = ops::dtype_of_number(number);
  if (!dtype) {
    const auto type = static_cast<ElementType>(number);
    const bool fits = static_cast<int64_t>(type) == number;
    return site.refuse(
        fmt::format("casts to {}", fits ? to_string(type) : fmt::format("element type {}", number)),
        "only numbers and booleans can be run");
  }
  site.attrs.set("to", number);
  if (site.in(0).is_tensor() && site.type(0).dtype == *dtype) return site.finish(site.in(0));
  site.pass_through();
}

/// The second input gives only its type.
void import_cast_like(Site& site) {
  if (!site.in(0).is_tensor() || !site.in(1).is_tensor())
    return site.contradict("it takes two tensors");
  if (site.type(0).dtype == site.type(1).dtype) return site.finish(site.in(0));
  site.attrs.set("to", ops::number_of_dtype(site.type(1).dtype));
  site.finish(site.emit("Cast", {site.in(0)}, site.attrs));
}

/// Version 1 rounded its two constants otherwise.
void import_selu(Site& site) {
  if (site.opset < 6) {
    site.attrs.erase("consumed_inputs");
    if (!site.attrs.has("alpha")) site.attrs.set("alpha", 1.6732);
    if (!site.attrs.has("gamma")) site.attrs.set("gamma", 1.0507);
  }
  site.pass_through();
}

/// In inference the input itself, and a mask of ones (of the input's type before version 10).
void import_dropout(Site& site) {
  if (!site.in(0).is_tensor()) return site.contradict("it takes a tensor");
  bool training = false;
  if (site.has(2)) {
    const std::vector<int64_t> mode = site.ints(2, "training_mode");
    if (!site.ok()) return;
    training = !mode.empty() && mode[0] != 0;
  }
  if (training) {
    const bool keeps_all = site.has(1) && site.in(1).is_constant() &&
                           site.in(1).constant.count() > 0 &&
                           site.in(1).constant.get_double(0) == 0;
    if (!keeps_all)
      return site.refuse("it drops at random, as in training", "export the model for inference");
  }
  site.finish(site.in(0));
  if (site.wants(1))
    site.outputs.push_back(
        site.filled(site.opset < 10 ? site.type(0).dtype : DType::b1, site.shape(0), 1));
}

}  // namespace obelisk::frontends::onnx
