#include "base/npy.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>

#include "base/base.h"

namespace obelisk {
namespace {

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A .npy file with any header text.
std::string npy(const std::string& dictionary, const std::string& data, int version = 1) {
  std::string out = "\x93NUMPY";
  out += static_cast<char>(version);
  out += '\0';
  for (int k = 0; k < (version == 1 ? 2 : 4); ++k) {
    out += static_cast<char>(dictionary.size() >> (8 * k) & 255);
  }
  return out + dictionary + data;
}

std::string head(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }\n";
}

std::string refusal(const std::string& file, std::optional<DType> as = std::nullopt) {
  const Result<Tensor> tensor = parse_npy(as_bytes(file), as);
  return tensor.ok() ? "read as " + to_string(tensor->type()) : tensor.error().text();
}

template <typename T>
std::string raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

TEST(Npy, EveryTypeGoesThere_AndBack) {
  for (int k = 0; k < kDTypes; ++k) {
    const DType dtype = static_cast<DType>(k);
    for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 3}, Shape{0, 4}}) {
      Tensor tensor = Tensor::allocate({dtype, shape});
      for (int64_t n = 0; n < tensor.count(); ++n) {
        if (is_float(dtype)) {
          tensor.set_double(n, static_cast<double>(1 << n % 3));
        } else {
          tensor.set_int(n, is_signed(dtype) ? -n : n);
        }
      }
      const std::string file = npy_bytes(tensor);
      EXPECT_EQ((file.size() - (file.find('\n') + 1)),
                static_cast<size_t>(bits(dtype) < 8 ? tensor.count() : tensor.bytes()));
      EXPECT_EQ((file.find('\n') + 1) % 64, 0u);
      const Result<Tensor> back = parse_npy(as_bytes(file), dtype);
      ASSERT_TRUE(back.ok()) << back.error().text();
      EXPECT_EQ(back->type(), tensor.type());
      EXPECT_EQ(std::memcmp(back->data(), tensor.data(), static_cast<size_t>(tensor.bytes())), 0)
          << to_string(dtype);
    }
  }
}

TEST(Npy, VersionsByteOrderAndFortranOrder) {
  for (int version : {1, 2, 3}) {
    const Result<Tensor> tensor =
        parse_npy(as_bytes(npy(head("<i4", "(2, 3)"), raw<int32_t>({1, 2, 3, 4, 5, 6}), version)));
    ASSERT_TRUE(tensor.ok()) << tensor.error().text();
    EXPECT_EQ(to_ints(*tensor), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  }
  const std::string big("\0\0\0\1\0\0\1\0", 8);
  EXPECT_EQ(to_ints(parse_npy(as_bytes(npy(head(">i4", "(2,)"), big))).value()),
            (std::vector<int64_t>{1, 256}));
  const std::string columns = npy(head("<i2", "(2, 3)", true), raw<int16_t>({1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(to_ints(parse_npy(as_bytes(columns)).value()),
            (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  const std::string cube =
      npy(head("|i1", "(2, 2, 2)", true), raw<int8_t>({0, 4, 2, 6, 1, 5, 3, 7}));
  EXPECT_EQ(to_ints(parse_npy(as_bytes(cube)).value()),
            (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(refusal(npy(head("<i8", "(0L, 7L)"), "")), "read as i64[0,7]");
}

TEST(Npy, RawElementsNeedAType) {
  const std::string file = npy(head("<V2", "(1,)"), raw<uint16_t>({0x3f80}));
  EXPECT_EQ(refusal(file),
            "base: raw elements of 2 byte(s), which may be any type; say which type they are");
  EXPECT_EQ(parse_npy(as_bytes(file), DType::bf16)->get_double(0), 1);
  EXPECT_EQ(refusal(file, DType::f32),
            "base: elements of raw u16 but f32 is wanted; convert them with .astype(np.float32); "
            "the file holds uint16");
  const std::string low = npy(head("<f1", "(1,)"), "\x3c");
  EXPECT_EQ(parse_npy(as_bytes(low), DType::f8e5m2)->get_double(0), 1);
  const std::string nibbles = npy(head("<V1", "(3,)"), std::string("\x0f\x00\x07", 3));
  EXPECT_EQ(to_ints(parse_npy(as_bytes(nibbles), DType::i4).value()),
            (std::vector<int64_t>{-1, 0, 7}));
  EXPECT_EQ(refusal(npy(head("|u1", "(1,)"), "\x10"), DType::u4),
            "base: element 0 is 16, which is no u4");
  EXPECT_EQ(refusal(npy(head("<f8", "(0,)"), ""), DType::f32),
            "base: elements of f64 but f32 is wanted; convert them with .astype(np.float32); "
            "the file holds float64");
}

TEST(Npy, LiesAreRefused) {
  EXPECT_EQ(refusal("hello"), "base: not a .npy file, it does not start with \\x93NUMPY");
  EXPECT_EQ(refusal(npy(head("<f4", "(2,)"), "1234567")),
            "base: the header says [2] of 4 bytes each, but 7 bytes follow; the file is truncated "
            "or damaged; save it again");
  const std::string huge = "(1000000, 1000000, 1000000, 1000000)";
  EXPECT_EQ(refusal(npy(head("<f4", huge), "")),
            "base: the header says [1000000,1000000,1000000,1000000] of 4 bytes each, but 0 bytes "
            "follow; the file is truncated or damaged; save it again");
  EXPECT_EQ(refusal(npy(head("<f4", "(4611686018427387904,)"), "")).substr(0, 34),
            "base: the header says [46116860184");
  EXPECT_EQ(refusal(npy(head("<f4", "(-1,)"), "")),
            "base: the header is not a dictionary of descr, fortran_order and shape");
  EXPECT_EQ(refusal(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "")),
            "base: a structured array, whose elements are records; save each field as an array of "
            "its own");
  EXPECT_EQ(refusal(npy(head("|O", "(1,)"), "")).substr(0, 32), "base: an array of Python objects");
  EXPECT_EQ(refusal(npy(head("<U3", "(1,)"), "")).substr(0, 40),
            "base: elements of NumPy type '<U3'; conv");
  EXPECT_EQ(refusal(npy(head("|b1", "(1,)"), "\2")),
            "base: a boolean array with bytes other than 0 and 1; save it again");
  EXPECT_EQ(refusal(npy(head("<V1", "(1,)"), "\2"), DType::b1),
            "base: a boolean array with bytes other than 0 and 1; save it again");
  EXPECT_EQ(refusal(std::string("\x93NUMPY\1\0\xff\xff{'de", 14)),
            "base: the file ends inside its header");
  EXPECT_EQ(refusal(std::string("\x93NUMPY\7\0\xff\xff{'de", 14)).substr(0, 31),
            "base: a .npy file of version 7;");
}

TEST(Npy, EveryTruncationAndEveryChangedByteIsAnswered) {
  const std::string good = npy(head("<f4", "(2, 2)", true), raw<float>({1, 2, 3, 4}));
  ASSERT_TRUE(parse_npy(as_bytes(good)).ok());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(parse_npy(as_bytes(good.substr(0, size))).ok());
  }
  for (size_t place = 0; place < good.size(); ++place) {
    for (int letter = 0; letter < 256; letter += 3) {
      std::string bad = good;
      bad[place] = static_cast<char>(letter);
      const Result<Tensor> tensor = parse_npy(as_bytes(bad));
      EXPECT_TRUE(!tensor.ok() || tensor->bytes() == 16);
    }
  }
}

class NpyFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("obelisk_npy_test." + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  std::filesystem::path folder_;
};

TEST_F(NpyFiles, AReadIsAViewOfTheMapping) {
  ASSERT_TRUE(write_npy(at("a.npy"), tensor_of({1, 2, 3})).ok());
  Result<Tensor> tensor = read_npy(at("a.npy"));
  ASSERT_TRUE(tensor.ok()) << tensor.error().text();
  EXPECT_EQ(to_ints(*tensor), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_THROW(tensor->mutable_data(), Bug);
  ASSERT_TRUE(write_file(at("b.npy"), "nonsense").ok());
  EXPECT_EQ(read_npy(at("b.npy")).error().text(),
            "base: " + at("b.npy") + ": not a .npy file, it does not start with \\x93NUMPY");
}

TEST_F(NpyFiles, ArchivesGoThereAndBack) {
  NamedTensors tensors;
  tensors["x"] = tensor_of({1, 2, 3});
  tensors["half"] = tensor_of(DType::bf16, {2}, {1, 2});
  tensors["empty"] = Tensor::allocate({DType::f32, {0}});
  ASSERT_TRUE(write_npz(at("a.npz"), tensors).ok());
  ASSERT_TRUE(write_npz(at("b.npz"), tensors).ok());
  EXPECT_EQ(read_file(at("a.npz")).value(), read_file(at("b.npz")).value());
  const Result<NamedTensors> back = read_npz(at("a.npz"), {{"half", DType::bf16}});
  ASSERT_TRUE(back.ok()) << back.error().text();
  EXPECT_EQ(back->size(), 3u);
  EXPECT_EQ(to_ints(back->at("x")), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(back->at("half").get_double(1), 2);
  EXPECT_EQ(read_npz(at("a.npz")).error().text(),
            "base: " + at("a.npz") +
                ": array 'half': raw elements of 2 byte(s), which may be any type; say which type "
                "they are");
  std::string file = read_file(at("a.npz")).value();
  file[file.find("\x93NUMPY") + 20] ^= 1;
  EXPECT_EQ(parse_npz(as_bytes(file), {{"half", DType::bf16}}).error().text(),
            "base: array 'empty': its checksum does not agree; the file is damaged; save it again");
}

// One deflated member, with any claim about its unpacked size.
std::string deflated_archive(const std::string& data, uint32_t claim) {
  std::string packed(compressBound(data.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  std::string out;
  const auto put = [&](uint64_t value, int width) {
    for (int k = 0; k < width; ++k) out += static_cast<char>(value >> (8 * k) & 255);
  };
  const auto fields = [&] {
    put(20, 2), put(0, 2), put(8, 2), put(0, 4);
    put(crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())), 4);
    put(packed.size(), 4), put(claim, 4), put(5, 2), put(0, 2);
  };
  put(0x04034b50, 4), fields();
  out += "x.npy" + packed;
  const size_t directory = out.size();
  put(0x02014b50, 4), put(20, 2), fields(), put(0, 8), put(0, 2), put(0, 4);
  out += "x.npy";
  const size_t size = out.size() - directory;
  put(0x06054b50, 4), put(0, 4), put(1, 2), put(1, 2), put(size, 4), put(directory, 4), put(0, 2);
  return out;
}

TEST(Npz, DeflatedMembers) {
  const Tensor tensor = Tensor::allocate({DType::f32, {1000}});
  const std::string data = npy_bytes(tensor);
  const auto size = static_cast<uint32_t>(data.size());
  const Result<NamedTensors> back = parse_npz(as_bytes(deflated_archive(data, size)));
  ASSERT_TRUE(back.ok()) << back.error().text();
  EXPECT_EQ(back->at("x").type(), tensor.type());
  for (const uint32_t wrong : {size + 1, size - 1}) {
    const Result<NamedTensors> read = parse_npz(as_bytes(deflated_archive(data, wrong)));
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.error().text().find("deflated data is damaged"), std::string::npos)
        << read.error().text();
  }
  const Result<NamedTensors> bomb = parse_npz(as_bytes(deflated_archive(data, 0xfffffffe)));
  ASSERT_FALSE(bomb.ok());
  EXPECT_NE(bomb.error().text().find("unpack to 4294967294"), std::string::npos);
}

TEST(Npz, EveryTruncationAndEveryChangedByteIsAnswered) {
  const std::string good = deflated_archive(npy_bytes(tensor_of({1, 2})), 144);
  ASSERT_TRUE(parse_npz(as_bytes(good)).ok());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(parse_npz(as_bytes(good.substr(0, size))).ok()) << size;
  }
  for (size_t place = 0; place < good.size(); ++place) {
    for (int letter : {0, 1, 0x50, 0x7f, 0xff}) {
      std::string bad = good;
      bad[place] = static_cast<char>(letter);
      const Result<NamedTensors> ignored = parse_npz(as_bytes(bad));
    }
  }
}

}  // namespace
}  // namespace obelisk
