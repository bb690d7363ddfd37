/// obelisk/dlpack.h — tensors of other libraries as inputs and outputs, in place (DLPack 0.6 or
/// later; https://dmlc.github.io/dlpack).
///
///   obelisk::bind_input(context, "pixels", image->dl_tensor);      a DLTensor: of PyTorch, JAX,
///   CuPy, NumPy, ... obelisk::bind_output(context, "scores", scores->dl_tensor); context.run(); or
///   run_on(stream), where all of them are the GPU's
///
/// A tensor stays valid through every run; it is dense, row-major, of the port's shape and element
/// type (b1: bool, or 8-bit unsigned numbers that are 0 or 1), and lies in the host's memory (of a
/// GPU's model run() copies it) or, of a GPU's model, in that GPU's, where its first element is
/// aligned to 16 bytes. What waits for whom on which stream is the caller's to arrange, as for any
/// work on the caller's stream. Header-only: who does not include it needs no DLPack. Errors
/// Failure, kUsage: the tensor is not such a one, or the model has no such port.
#pragma once

#include <dlpack/dlpack.h>

#include <algorithm>
#include <span>
#include <string>

#include "obelisk/context.h"

namespace obelisk {
namespace dlpack {

[[noreturn]] inline void refuse(const std::string& port, const std::string& why,
                                const std::string& hint) {
  const std::string message = "a tensor cannot be '" + port + "': " + why;
  throw Failure(FailureKind::kUsage, message, "", hint, "usage: " + message + "; " + hint);
}

/// Whether DLPack's type is the port's.
inline bool is_element(const DLDataType& type, Element element) {
  constexpr int kBool = 6;  // of DLPack 0.8 and later
  const auto is = [&](int code, int bits) {
    return type.code == code && type.bits == bits && type.lanes == 1;
  };
  switch (element) {
    case Element::f64:
      return is(kDLFloat, 64);
    case Element::f32:
      return is(kDLFloat, 32);
    case Element::f16:
      return is(kDLFloat, 16);
    case Element::bf16:
      return is(kDLBfloat, 16);
    case Element::i64:
      return is(kDLInt, 64);
    case Element::i32:
      return is(kDLInt, 32);
    case Element::i16:
      return is(kDLInt, 16);
    case Element::i8:
      return is(kDLInt, 8);
    case Element::u64:
      return is(kDLUInt, 64);
    case Element::u32:
      return is(kDLUInt, 32);
    case Element::u16:
      return is(kDLUInt, 16);
    case Element::u8:
      return is(kDLUInt, 8);
    case Element::b1:
      return is(kBool, 8) || is(kDLUInt, 8);
    default:
      return false;  // narrower ones have no type there that says how they are packed
  }
}

/// Where the tensor's elements begin, once it is known to be what the port wants.
inline std::byte* memory_of(const Model& model, const Port& port, const DLTensor& tensor) {
  const auto text = [](const auto* extents, size_t count) {
    std::string out = "[";
    for (size_t d = 0; d < count; ++d) out += (d ? "," : "") + std::to_string(extents[d]);
    return out + "]";
  };
  const auto rank = static_cast<size_t>(tensor.ndim < 0 ? 0 : tensor.ndim);
  if (!is_element(tensor.dtype, port.element))
    refuse(port.name,
           "it wants " + element_name(port.element) + ", the tensor's type has code " +
               std::to_string(tensor.dtype.code) + " with " + std::to_string(tensor.dtype.bits) +
               " bits and " + std::to_string(tensor.dtype.lanes) + " lanes",
           "convert it first");
  if (tensor.ndim < 0 || rank != port.shape.size() ||
      !std::equal(port.shape.begin(), port.shape.end(), tensor.shape))
    refuse(port.name,
           "it wants the shape " + text(port.shape.data(), port.shape.size()) +
               ", the tensor has " + text(tensor.shape, rank),
           "reshape it, or compile the model for this shape");
  if (tensor.strides && port.count > 0) {
    int64_t stride = 1;
    for (size_t d = rank; d-- > 0; stride *= port.shape[d])
      if (port.shape[d] != 1 && tensor.strides[d] != stride)
        refuse(
            port.name,
            "the tensor's strides " + text(tensor.strides, rank) + " are not those of dense rows",
            "copy it to such a one first");
  }
  const auto kind = static_cast<int>(tensor.device.device_type);
  const bool host = kind == kDLCPU || kind == kDLCUDAHost,
             gpu = kind == kDLCUDA || kind == kDLCUDAManaged;
  if (!host && !gpu)
    refuse(port.name, "it lies on a device of DLPack's kind " + std::to_string(kind),
           "copy it to the host's memory");
  if (gpu && model.gpu() < 0)
    refuse(port.name, "it lies in a GPU's memory, the model runs on the CPU",
           "copy it to the host's, or compile for \"cuda\"");
  if (gpu && kind == kDLCUDA && tensor.device.device_id != model.gpu())
    refuse(
        port.name,
        "it lies in the memory of GPU " + std::to_string(tensor.device.device_id) +
            ", the model runs on GPU " + std::to_string(model.gpu()),
        "copy it there, or compile for \"cuda:" + std::to_string(tensor.device.device_id) + "\"");
  if (!tensor.data && port.bytes > 0)
    refuse(port.name, "the tensor has no memory",
           "give it " + std::to_string(port.bytes) + " bytes");
  return static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

}  // namespace dlpack

/// Reads an input from the tensor from now on, without a copy.
inline void bind_input(Context& context, const std::string& name, const DLTensor& tensor) {
  const Port& port = context.model().input(name);
  context.bind_input(name, std::span<const std::byte>(
                               dlpack::memory_of(context.model(), port, tensor), port.bytes));
}
/// Writes an output to the tensor from now on, without a copy.
inline void bind_output(Context& context, const std::string& name, const DLTensor& tensor) {
  const Port& port = context.model().output(name);
  context.bind_output(
      name, std::span<std::byte>(dlpack::memory_of(context.model(), port, tensor), port.bytes));
}

}  // namespace obelisk
