/// frontends/frontends.h — the door of `frontends`: model files in, a graph with known shapes out.
///
///   read      a file, mapped  →  onnx::Model: names, nodes, types; weights stay in the file
///   inspect   Model           →  what a user has to know before binding shapes
///   import    Model, shapes   →  graph::Graph, or every node that cannot be run
///   write     Graph           →  a model file for viewers and other runtimes
///
/// This is the last place where operator-set versions, functions, control flow and sequences exist.
#pragma once

#include "frontends/onnx/import.h"
#include "frontends/onnx/inspect.h"
#include "frontends/onnx/model.h"
#include "frontends/onnx/write_model.h"
