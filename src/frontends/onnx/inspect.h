/// frontends/onnx/inspect.h — what a user has to know about a model before it is imported.
#pragma once

#include <string>
#include <vector>

#include "frontends/onnx/model.h"

namespace obelisk::frontends {

struct PortDescription {
  std::string name;
  std::string type;  // "f16", "string", "sequence(string)"
  bool has_shape = false;
  std::vector<std::string> shape;  // "2", the name of a symbolic dimension, or "?"
  std::string shape_text() const;  // "[batch,128]", or "?" where no shape is given
};

struct ModelDescription {
  std::vector<PortDescription> inputs, outputs;  // without inputs that have a default
  std::vector<std::string> symbols;  // names of the inputs' symbolic dimensions, each once
  onnx::Opsets opsets;
  std::string producer;       // "pytorch 2.1"
  int64_t nodes = 0;          // functions' and inner graphs' included, once each
  int64_t weights_bytes = 0;  // as far as shapes are known
  int64_t functions = 0;
};

ModelDescription inspect(const onnx::Model& model);

/// Names of inputs whose values shapes or control flow depend on (the shape given to Reshape, k of
/// TopK, a trip count, …), found by tracing back from such places through any computation. Only
/// inputs of rank 0 or 1 count: larger ones are data.
std::vector<std::string> value_dependent_inputs(const onnx::Model& model);

}  // namespace obelisk::frontends
