// Attributes of a node, with those of the calling function put in.
#include "frontends/onnx/site.h"

namespace obelisk::frontends::onnx {
namespace {

/// The op table knows no lists of strings; the few ops that have one read it with commas between.
std::string joined(const std::vector<std::string_view>& strings) {
  return fmt::format("{}", fmt::join(strings, ","));
}

}  // namespace

Status Importer::read_attributes(Site& site) {
  using Kind = AttributeDef::Kind;
  for (const AttributeDef& attribute : site.node.attributes) {
    const std::string name(attribute.name);
    const AttributeDef* given = &attribute;
    if (!attribute.reference.empty()) {
      if (!site.scope.attributes)
        return bad_model(fmt::format("the attribute '{}' refers to one of a function, but the node "
                                     "is in none",
                                     name),
                         site.name);
      const auto found = site.scope.attributes->find(attribute.reference);
      if (found == site.scope.attributes->end()) continue;  // not given by the caller: absent here
      given = found->second;
    }
    ops::Attrs& attrs = site.attrs;
    switch (given->kind) {
      case Kind::kFloat:
        attrs.set(name, static_cast<double>(given->f));
        break;
      case Kind::kInt:
        attrs.set(name, given->i);
        break;
      case Kind::kString:
        attrs.set(name, std::string(given->s));
        break;
      case Kind::kFloats:
        attrs.set(name, std::vector<double>(given->floats.begin(), given->floats.end()));
        break;
      case Kind::kInts:
        attrs.set(name, given->ints);
        break;
      case Kind::kStrings:
        attrs.set(name, joined(given->strings));
        break;
      case Kind::kTensor:
        if (given->tensor) {
          TRY(Tensor tensor, decode(model_, *given->tensor));
          attrs.set(name, std::move(tensor));
        }
        break;
      case Kind::kSparseTensor:
        if (given->sparse) {
          TRY(Tensor tensor, decode(model_, *given->sparse));
          attrs.set(name, std::move(tensor));
        }
        break;
      case Kind::kGraph:
        if (given->graph) site.bodies[attribute.name] = given->graph.get();
        break;
      case Kind::kType:
        break;  // only Optional has one, which is known by its elements
      case Kind::kUndefined:
        return bad_model(fmt::format("the attribute '{}' has no value", name), site.name);
      default:
        return Error{Code::kUnsupported, "frontends",
                     fmt::format("the attribute '{}' is a list of tensors, graphs or types", name),
                     site.name, ""};
    }
  }
  return ok_status();
}

}  // namespace obelisk::frontends::onnx
