/// base/npy.h — NumPy's array files: .npy (versions 1 to 3) and .npz (stored or deflated) from and
/// to tensors.
///
/// Every claim of a file is checked against its size before memory is allocated. Fortran order and
/// big-endian data are converted. Types that NumPy itself does not know travel raw: bf16 as '<V2',
/// the 8-bit floats and f4e2m1 as '<V1' (one element to a byte), i4 and i2 as '|i1', u4 and u2 as
/// '|u1'. Raw data says nothing of its meaning, so reading it needs `as`.
///
/// Errors: kUsage, with the path (or member), what the file says, and the way out.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/tensor.h"

namespace obelisk {

/// The array of a file; where the bytes are usable as they lie, a view of the mapping. `as`: the
/// type that is wanted. Raw elements and u8/i8 are taken as the narrow type of that name; any other
/// type must be the one that the file has.
Result<Tensor> read_npy(const std::string& path, std::optional<DType> as = std::nullopt);
/// The same of bytes in memory: a view when `owner` keeps them alive, else a copy.
Result<Tensor> parse_npy(std::span<const std::byte> bytes, std::optional<DType> as = std::nullopt,
                         std::shared_ptr<const void> owner = nullptr);

/// Arrays by name, without ".npy". `as`: wanted types by name.
using NamedTypes = std::map<std::string, DType>;
using NamedTensors = std::map<std::string, Tensor>;
Result<NamedTensors> read_npz(const std::string& path, const NamedTypes& as = {});
Result<NamedTensors> parse_npz(std::span<const std::byte> bytes, const NamedTypes& as = {},
                               std::shared_ptr<const void> owner = nullptr);

std::string npy_bytes(const Tensor& tensor);
Status write_npy(const std::string& path, const Tensor& tensor);
/// Stored, not deflated; same tensors, same bytes. A member holds less than 4 GiB.
Status write_npz(const std::string& path, const NamedTensors& tensors);

}  // namespace obelisk
