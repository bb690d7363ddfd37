// .npz: a zip archive of .npy files. Only what such archives use is read: stored and deflated
// members, with the 64-bit extension, no encryption, one disk.
#include <fmt/format.h>
#include <zlib.h>

#include <climits>
#include <cstring>

#include "base/file.h"
#include "base/npy.h"

namespace obelisk {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr size_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22, kEnd64Size = 56;
constexpr uint64_t kBestRatio = 1040;  // deflate packs at most 1032 bytes into one

Error bad(std::string message, std::string hint = "the file is damaged; save it again") {
  return {
      .code = Code::kUsage, .room = "base", .message = std::move(message), .hint = std::move(hint)};
}

using Bytes8 = std::span<const std::byte>;

uint64_t field(Bytes8 bytes, size_t at, int width) {
  uint64_t out = 0;
  for (int k = 0; k < width; ++k) {
    out |= static_cast<uint64_t>(bytes[at + static_cast<size_t>(k)]) << (8 * k);
  }
  return out;
}

bool has(Bytes8 bytes, uint64_t at, uint64_t size) {
  return at <= bytes.size() && size <= bytes.size() - at;
}

struct Member {
  std::string name;
  uint64_t flags, method, crc, packed, size, header;
};

// The extension holds, in this order, those of size, packed size and offset that are all ones.
Status read_extension(Bytes8 extra, Member& member) {
  while (extra.size() >= 4) {
    const uint64_t tag = field(extra, 0, 2), length = field(extra, 2, 2);
    if (!has(extra, 4, length)) break;
    if (tag == 1) {
      Bytes8 body = extra.subspan(4, length);
      for (uint64_t* value : {&member.size, &member.packed, &member.header}) {
        if (*value != 0xffffffff) continue;
        if (body.size() < 8) return bad("a zip member's 64-bit sizes are missing");
        *value = field(body, 0, 8);
        body = body.subspan(8);
      }
      return ok_status();
    }
    extra = extra.subspan(4 + length);
  }
  return ok_status();
}

struct Directory {
  uint64_t entries, offset;
};

Result<Directory> find_directory(Bytes8 bytes) {
  // The end record is last, before a comment of at most 65535 bytes.
  const size_t most = std::min<size_t>(bytes.size(), kEndSize + 65535);
  for (size_t back = kEndSize; back <= most; ++back) {
    const size_t at = bytes.size() - back;
    if (field(bytes, at, 4) != kEnd || field(bytes, at + 20, 2) != back - kEndSize) continue;
    Directory out{field(bytes, at + 10, 2), field(bytes, at + 16, 4)};
    if (out.entries != 0xffff && out.offset != 0xffffffff) return out;
    if (at < 20 || field(bytes, at - 20, 4) != kLocator64) return out;
    const uint64_t record = field(bytes, at - 12, 8);
    if (!has(bytes, record, kEnd64Size) || field(bytes, record, 4) != kEnd64) break;
    return Directory{field(bytes, record + 32, 8), field(bytes, record + 48, 8)};
  }
  return bad("not a .npz file, it has no zip directory", "save it with numpy.savez");
}

Result<std::vector<Member>> read_directory(Bytes8 bytes) {
  TRY(const Directory directory, find_directory(bytes));
  std::vector<Member> out;
  uint64_t at = directory.offset, packed = 0;
  for (uint64_t entry = 0; entry < directory.entries; ++entry) {
    if (!has(bytes, at, kCentralSize) || field(bytes, at, 4) != kCentral) {
      return bad(
          fmt::format("the zip directory ends after {} of {} members", entry, directory.entries));
    }
    Member member{.flags = field(bytes, at + 8, 2),
                  .method = field(bytes, at + 10, 2),
                  .crc = field(bytes, at + 16, 4),
                  .packed = field(bytes, at + 20, 4),
                  .size = field(bytes, at + 24, 4),
                  .header = field(bytes, at + 42, 4)};
    const uint64_t name = field(bytes, at + 28, 2), extra = field(bytes, at + 30, 2);
    const uint64_t comment = field(bytes, at + 32, 2);
    at += kCentralSize;
    if (!has(bytes, at, name + extra + comment)) return bad("the zip directory is cut off");
    member.name.assign(reinterpret_cast<const char*>(bytes.data() + at), name);
    TRY_STATUS(read_extension(bytes.subspan(at + name, extra), member));
    at += name + extra + comment;
    packed += member.packed;
    // Members that share bytes could unpack to any size.
    if (member.packed > bytes.size() || packed > bytes.size()) {
      return bad("the zip members are larger than the file");
    }
    out.push_back(std::move(member));
  }
  return out;
}

Result<std::vector<std::byte>> inflated(Bytes8 packed, const Member& member) {
  if (member.size / kBestRatio > packed.size() + 1) {
    return bad(fmt::format("it says that {} bytes unpack to {}", packed.size(), member.size));
  }
  std::vector<std::byte> out(member.size);
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return bad("zlib does not start", "");
  size_t in = 0, made = 0;
  int state = Z_OK;
  // zlib counts in 32 bits, so both sides go in pieces.
  while (state == Z_OK) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + in));
    stream.avail_in = static_cast<uInt>(std::min<size_t>(packed.size() - in, INT_MAX));
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + made);
    stream.avail_out = static_cast<uInt>(std::min<size_t>(out.size() - made, INT_MAX));
    const uInt in_before = stream.avail_in, out_before = stream.avail_out;
    state = inflate(&stream, Z_NO_FLUSH);
    in += in_before - stream.avail_in;
    made += out_before - stream.avail_out;
  }
  inflateEnd(&stream);
  if (state != Z_STREAM_END || made != out.size()) return bad("its deflated data is damaged");
  return out;
}

bool crc_agrees(Bytes8 bytes, uint64_t want) {
  return crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) == want;
}

Result<Tensor> read_member(Bytes8 bytes, const Member& member, std::optional<DType> as,
                           std::shared_ptr<const void> owner) {
  if (member.flags & 1) return bad("it is encrypted", "save it with numpy.savez");
  if (!has(bytes, member.header, kLocalSize) || field(bytes, member.header, 4) != kLocal) {
    return bad("its zip header is not where the directory says");
  }
  const uint64_t start = member.header + kLocalSize + field(bytes, member.header + 26, 2) +
                         field(bytes, member.header + 28, 2);
  if (!has(bytes, start, member.packed)) return bad("the file ends inside it");
  const Bytes8 packed = bytes.subspan(start, member.packed);
  if (member.method == 0) {
    if (member.packed != member.size || !crc_agrees(packed, member.crc)) {
      return bad("its checksum does not agree");
    }
    return parse_npy(packed, as, std::move(owner));
  }
  if (member.method != 8) {
    return bad(fmt::format("it is compressed by zip method {}", member.method),
               "save it with numpy.savez or numpy.savez_compressed");
  }
  TRY(std::vector<std::byte> data, inflated(packed, member));
  if (!crc_agrees(data, member.crc)) return bad("its checksum does not agree");
  auto keep = std::make_shared<std::vector<std::byte>>(std::move(data));
  return parse_npy(*keep, as, keep);
}

void put(std::string& out, uint64_t value, int width) {
  for (int k = 0; k < width; ++k) out += static_cast<char>(value >> (8 * k) & 255);
}

}  // namespace

Result<NamedTensors> parse_npz(std::span<const std::byte> bytes, const NamedTypes& as,
                               std::shared_ptr<const void> owner) {
  TRY(const std::vector<Member> members, read_directory(bytes));
  NamedTensors out;
  for (const Member& member : members) {
    std::string name = member.name;
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    const auto wanted = as.find(name);
    const std::optional<DType> type =
        wanted == as.end() ? std::nullopt : std::optional<DType>(wanted->second);
    Result<Tensor> tensor = read_member(bytes, member, type, owner);
    if (!tensor.ok()) {
      tensor.error().message = fmt::format("array '{}': {}", name, tensor.error().message);
      return std::move(tensor.error());
    }
    if (!out.emplace(name, std::move(*tensor)).second) {
      return bad(fmt::format("two arrays are named '{}'", name));
    }
  }
  return out;
}

Result<NamedTensors> read_npz(const std::string& path, const NamedTypes& as) {
  TRY(const std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  Result<NamedTensors> out = parse_npz({file->data(), file->size()}, as, file);
  if (!out.ok()) out.error().message = path + ": " + out.error().message;
  return out;
}

Status write_npz(const std::string& path, const NamedTensors& tensors) {
  std::string out, directory;
  for (const auto& [name, tensor] : tensors) {
    const std::string data = npy_bytes(tensor), file = name + ".npy";
    if (data.size() > 0xfffffffe || out.size() > 0xfffffffe || file.size() > 0xffff) {
      return bad(fmt::format("{}: the arrays take more than 4 GiB", path),
                 "write each to a .npy file");
    }
    const uint64_t crc = crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size());
    std::string fields;          // what both headers share
    put(fields, 20, 2);          // version of zip that is needed
    put(fields, 0x800, 2);       // names are UTF-8
    put(fields, 0, 2);           // stored
    put(fields, 0x00210000, 4);  // 1980-01-01, so that equal tensors give equal bytes
    put(fields, crc, 4);
    put(fields, data.size(), 4);
    put(fields, data.size(), 4);
    put(fields, file.size(), 2);
    put(fields, 0, 2);  // no extension
    put(directory, kCentral, 4);
    put(directory, 20, 2);
    directory += fields;
    put(directory, 0, 8);
    put(directory, 0, 2);  // no comment, first disk, no attributes
    put(directory, out.size(), 4);
    directory += file;
    put(out, kLocal, 4);
    out += fields;
    out += file;
    out += data;
  }
  const uint64_t start = out.size();
  if (start > 0xfffffffe || tensors.size() > 0xfffe) {
    return bad(fmt::format("{}: the arrays take more than 4 GiB", path),
               "write each to a .npy file");
  }
  out += directory;
  put(out, kEnd, 4);
  put(out, 0, 4);
  put(out, tensors.size(), 2);
  put(out, tensors.size(), 2);
  put(out, directory.size(), 4);
  put(out, start, 4);
  put(out, 0, 2);
  return write_file(path, out);
}

}  // namespace obelisk
