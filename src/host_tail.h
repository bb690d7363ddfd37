/// host_tail.h — the end of a network whose shapes depend on data, run on the host after the
/// program. Stands beside compile.cpp.
///
///   head   what does not read such a node: compiled as any network; its outputs are those of the
///          model that it makes, and what the tail reads
///   tail   the nodes whose shapes (NonZero, NonMaxSuppression, Unique) or control flow (If, Loop)
///          depend on data, and all that reads them: imported anew for each run, with the head's
///          answers as constants, and interpreted
///
/// Only nodes of the model's own graph are cut off, whole: what stands inside of a function or of
/// an inner graph goes with the node around it. The tail is the reference's arithmetic; it is meant
/// for the few numbers at the end of a detector, not for layers.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frontends/frontends.h"

namespace obelisk::compiler {

class HostTail {
 public:
  /// One of the whole model's outputs.
  struct Output {
    std::string name;
    int head = -1;  // which output of the head it is; -1: the tail makes it
    Type type;      // of the tail's: extents that depend on data are -1
  };
  const std::vector<Output>& outputs() const { return outputs_; }

  /// The tail's outputs, in the order of outputs(); those of the head are empty. `head`: its
  /// outputs, in its order. Errors: those of importing, where data leads to what cannot be run.
  Result<std::vector<Tensor>> run(std::span<const Tensor> head) const;

  /// A line for each node that began the tail with its reason, and how many follow.
  const std::string& text() const { return text_; }
  /// "NonZero 'find'" of the first.
  const std::string& first() const { return first_; }

 private:
  friend struct TailBuilder;
  frontends::onnx::Model model_;
  std::vector<std::string> inputs_;  // names of what it reads of the head, by output of the head
  std::vector<Output> outputs_;
  std::string text_, first_;
};

struct SplitModel {
  frontends::onnx::Model head;
  std::shared_ptr<const HostTail> tail;
};
/// `report`: of an import that failed. Nothing where the nodes that cannot be run could not be run
/// on the host either, or where no part would be left to compile.
std::optional<SplitModel> split_tail(const frontends::onnx::Model& model,
                                     const frontends::ImportOptions& options,
                                     const frontends::ImportReport& report);

}  // namespace obelisk::compiler
