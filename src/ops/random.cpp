#include "ops/random.h"

#include "ops/arrays.h"

namespace obelisk::ops {

Result<Types> infer_random(const Call& call) {
  return unsupported_call(call, "it draws random numbers, which no reference can check",
                          "make its output an input of the model and draw outside");
}

Result<Types> infer_dropout(const Call& call) {
  for (int scalar : {1, 2}) {
    if (call.has(scalar) && call.in(scalar).count() != 1) {
      return bad_call(
          call, fmt::format("{} is {}, wanted a scalar", scalar == 1 ? "ratio" : "training_mode",
                            to_string(call.in(scalar))));
    }
  }
  const Tensor* training = call.constant(2);
  const bool may_train = call.has(2) && (!training || training->get_int(0) != 0);
  const Tensor* ratio = call.constant(1);
  const bool may_drop = !call.has(1) || !ratio || ratio->get_double(0) != 0;
  if (may_train && may_drop) {
    return unsupported_call(call, "training_mode is true or not constant, so it drops at random",
                            "export the model for inference (training_mode = false)");
  }
  return Types{call.in(0), {DType::b1, call.in(0).shape}};
}

std::optional<Loop> loop_dropout(const Call& call, int output) {
  Call first = call;
  first.inputs.resize(1);
  MapStart start = start_map(first, call.in(0).shape);
  start.loop.body = output == 0 ? start.values[0] : start.loop.exprs.constant(DType::b1, 1);
  return std::move(start.loop);
}

Status reference_random(const Call& call, std::span<const Tensor* const>, std::span<Tensor>) {
  return infer_random(call).error();
}

Status reference_dropout(const Call&, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs) {
  for (int64_t n = 0; n < inputs[0]->count(); ++n) {
    copy_element(outputs[0], n, *inputs[0], n);
    if (outputs.size() > 1) outputs[1].set_int(n, 1);
  }
  return ok_status();
}

}  // namespace obelisk::ops
