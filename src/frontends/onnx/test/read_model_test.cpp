#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "frontends/onnx/test/make_model.h"

namespace obelisk::frontends::onnx {
namespace {

using namespace make;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string error_of(const std::string& bytes) {
  const auto model = read(bytes);
  return model.ok() ? "no error" : model.error().text();
}

/// The first initializer of a model, decoded.
Result<Tensor> decode_first(const std::string& tensor_bytes, const std::string& folder = ".") {
  TRY(const Model model, read(make::model(graph({}, {}, {}, {tensor_bytes})), folder));
  return decode(model, model.graph.initializers[0]);
}

std::string decode_error(const std::string& tensor_bytes, const std::string& folder = ".") {
  const auto tensor = decode_first(tensor_bytes, folder);
  return tensor.ok() ? "no error" : tensor.error().text();
}

TEST(ReadModel, FindsEveryPart) {
  const std::string bytes = make::model(
      graph(
          {node("Gemm", {"x", "w", ""}, {"y"},
                {attr("alpha", 0.5f), attr("transB", 1), attr("axes", std::vector<int64_t>{1, -2}),
                 attr("mode", "linear"), attr_floats("scales", {1.5f, 2})},
                "fc")},
          {value("x", kFloat, {"batch", "3", "?"})}, {value("y", kFloat, {})},
          {floats("w", {2}, {1, 2})}),
      17, {function("local", "f", {"a"}, {"b"}, {node("Relu", {"a"}, {"b"})})});
  const Model model = *read(bytes);
  EXPECT_EQ(model.opsets.at(""), 17);
  EXPECT_EQ(model.producer, "test");
  const NodeDef& gemm = model.graph.nodes.at(0);
  EXPECT_EQ(gemm.name, "fc");
  EXPECT_THAT(gemm.inputs, ::testing::ElementsAre("x", "w", ""));
  EXPECT_EQ(gemm.attributes[0].f, 0.5f);
  EXPECT_EQ(gemm.attributes[1].i, 1);
  EXPECT_THAT(gemm.attributes[2].ints, ::testing::ElementsAre(1, -2));
  EXPECT_EQ(gemm.attributes[3].s, "linear");
  EXPECT_THAT(gemm.attributes[4].floats, ::testing::ElementsAre(1.5f, 2.0f));
  const TypeDef& type = model.graph.inputs.at(0).type;
  EXPECT_EQ(type.shape.size(), 3u);
  EXPECT_EQ(type.shape[0].symbol, "batch");
  EXPECT_EQ(type.shape[1].value, 3);
  EXPECT_FALSE(type.shape[2].value.has_value());
  EXPECT_EQ(model.functions.at(0).nodes.at(0).op, "Relu");
}

TEST(ReadModel, RefusesWhatIsNoModel) {
  EXPECT_THAT(error_of(""), HasSubstr("is empty"));
  EXPECT_THAT(error_of("version https://git-lfs"), HasSubstr("not a whole ONNX file"));
  EXPECT_THAT(error_of(message([](pbf_writer& out) { out.add_int64(1, 8); })),
              HasSubstr("holds no graph"));
  const std::string good = make::model(graph({node("Relu", {"x"}, {"y"})}, {}, {}));
  EXPECT_THAT(error_of(good.substr(0, 20)), HasSubstr("not a whole ONNX file"));
  EXPECT_THAT(error_of(make::model(graph({node("Relu\xff", {"x"}, {"y"})}, {}, {}))),
              HasSubstr("not UTF-8"));
}

TEST(ReadModel, EveryPrefixIsReadOrRefused) {
  const std::string good = make::model(
      graph({node("If", {"c"}, {"y"},
                  {attr_graph("then_branch", graph({node("Relu", {"x"}, {"y"})}, {}, {}))})},
            {value("x", kFloat, {"2"})}, {}, {floats("w", {3}, {1, 2, 3})}));
  for (size_t size = 0; size < good.size(); ++size) {
    const auto model = read(good.substr(0, size));
    EXPECT_TRUE(model.ok() || model.error().code == Code::kBadModel) << size;
  }
}

TEST(ReadModel, RefusesDeepNesting) {
  std::string inner = graph({}, {}, {});
  for (int depth = 0; depth < 100; ++depth)
    inner = graph({node("If", {"c"}, {"y"}, {attr_graph("then_branch", inner)})}, {}, {});
  EXPECT_THAT(error_of(make::model(inner)), HasSubstr("nest deeper"));
  std::string type = tensor_type(kFloat, {});
  for (int depth = 0; depth < 100; ++depth)
    type = message([&](pbf_writer& out) {
      out.add_message(4, message([&](pbf_writer& sequence) { sequence.add_message(1, type); }));
    });
  EXPECT_THAT(error_of(make::model(graph({}, {value("x", type)}, {}))), HasSubstr("nest deeper"));
}

TEST(ReadTensor, RawBytesAreAView) {
  const Model model = *read(make::model(graph({}, {}, {}, {floats("w", {2, 2}, {1, 2, 3, 4})})));
  const Tensor tensor = *decode(model, model.graph.initializers[0]);
  EXPECT_EQ(static_cast<const void*>(model.graph.initializers[0].raw->data()), tensor.data());
  EXPECT_EQ(tensor.get_double(3), 4);
}

TEST(ReadTensor, TypedFields) {
  const auto typed = [](int element, std::vector<int64_t> dims, auto fill) {
    return message([&](pbf_writer& out) {
      for (const int64_t dim : dims) out.add_int64(1, dim);
      out.add_int32(2, element);
      fill(out);
    });
  };
  const std::vector<float> reals{1.5f, -2};
  Tensor tensor = *decode_first(
      typed(kFloat, {2}, [&](auto& out) { out.add_packed_float(4, reals.begin(), reals.end()); }));
  EXPECT_EQ(tensor.get_double(1), -2);
  tensor = *decode_first(typed(kFloat, {2}, [&](auto& out) {
    out.add_float(4, 1);
    out.add_float(4, 7);
  }));
  EXPECT_EQ(tensor.get_double(1), 7);
  const std::vector<int32_t> halves{0x3c00, 0xc000};
  const auto packed = [](const std::vector<int32_t>& values) {
    return [values](auto& out) { out.add_packed_int32(5, values.begin(), values.end()); };
  };
  tensor = *decode_first(typed(kF16, {2}, packed(halves)));
  EXPECT_EQ(tensor.get_double(0), 1);
  EXPECT_EQ(tensor.get_double(1), -2);
  tensor = *decode_first(typed(kI8, {2}, packed({-3, 127})));
  EXPECT_EQ(tensor.get_int(0), -3);
  tensor = *decode_first(typed(kBool, {2}, packed({0, 5})));
  EXPECT_EQ(tensor.get_int(1), 1);
  tensor = *decode_first(typed(17 /* float8e4m3fn */, {1}, packed({0x38})));
  EXPECT_EQ(tensor.get_double(0), 1);
  tensor = *decode_first(typed(22 /* int4 */, {3}, packed({0x7f, 0x02})));
  EXPECT_THAT(to_ints(tensor), ::testing::ElementsAre(-1, 7, 2));
  tensor = *decode_first(typed(25 /* uint2 */, {3}, packed({0x1b})));
  EXPECT_THAT(to_ints(tensor), ::testing::ElementsAre(3, 2, 1));
  const std::vector<uint64_t> large{~uint64_t{0}};
  tensor = *decode_first(typed(13 /* uint64 */, {1}, [&](auto& out) {
    out.add_packed_uint64(11, large.begin(), large.end());
  }));
  EXPECT_EQ(static_cast<uint64_t>(tensor.get_int(0)), ~uint64_t{0});
}

TEST(ReadTensor, RefusesLyingSizes) {
  EXPECT_THAT(decode_error(tensor("w", kFloat, {3}, raw<float>({1, 2}))),
              HasSubstr("tensor 'w' of f32[3] needs 12 bytes but 8 bytes are there"));
  EXPECT_THAT(decode_error(tensor("w", kFloat, {1000000, 1000000}, "")), HasSubstr("more than"));
  EXPECT_THAT(decode_error(tensor("w", kFloat, {-1}, "")), HasSubstr("negative extent"));
  EXPECT_THAT(decode_error(tensor("w", kFloat, {int64_t{1} << 62, int64_t{1} << 62, 0}, "")),
              HasSubstr("more than"));
  EXPECT_THAT(decode_error(tensor("w", kString, {1}, "")), HasSubstr("only numbers and booleans"));
  EXPECT_THAT(decode_error(tensor("w", 77, {1}, "")), HasSubstr("element type 77"));
  const std::string sparse_fields = message([&](pbf_writer& out) {
    out.add_int64(1, 1 << 30);
    out.add_int32(2, kI32);
  });
  EXPECT_THAT(decode_error(sparse_fields), HasSubstr("bytes at most"));
}

class ExternalData : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("obelisk_external_{}", getpid());
    fs::create_directories(folder_ / "model");
    ASSERT_TRUE(write_file((folder_ / "secret").string(), "secret!!").ok());
    ASSERT_TRUE(write_file((folder_ / "model/data").string(), raw<float>({1, 2, 3})).ok());
    fs::create_symlink(folder_ / "secret", folder_ / "model/link");
    fs::create_symlink("data", folder_ / "model/near");
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string error(const std::string& location, const std::string& offset = "",
                    const std::string& length = "") {
    return decode_error(external("w", kFloat, {2}, location, offset, length),
                        (folder_ / "model").string());
  }
  fs::path folder_;
};

TEST_F(ExternalData, IsAViewInsideOfTheFolder) {
  const Tensor tensor =
      *decode_first(external("w", kFloat, {2}, "data", "4", "8"), (folder_ / "model").string());
  EXPECT_EQ(tensor.get_double(0), 2);
  EXPECT_EQ(tensor.get_double(1), 3);
  EXPECT_EQ(error("near"), "no error");
  EXPECT_EQ(error("./data"), "no error");
}

TEST_F(ExternalData, RefusesPathsThatLeave) {
  EXPECT_THAT(error((folder_ / "secret").string()), HasSubstr("absolute path"));
  EXPECT_THAT(error("../secret"), HasSubstr("leaves the model's folder"));
  EXPECT_THAT(error("sub/../../secret"), HasSubstr("leaves the model's folder"));
  EXPECT_THAT(error("link"), HasSubstr("by a symbolic link"));
  EXPECT_THAT(error("none"), HasSubstr("is not there"));
  EXPECT_THAT(error("."), HasSubstr("not a regular file"));
  EXPECT_THAT(error(std::string("data\0x", 6)), HasSubstr("no valid path"));
  EXPECT_THAT(error(""), HasSubstr("names no file"));
}

TEST_F(ExternalData, RefusesRangesThatDoNotFit) {
  EXPECT_THAT(error("data", "8"), HasSubstr("has 12 bytes"));
  EXPECT_THAT(error("data", "9223372036854775807"), HasSubstr("has 12 bytes"));
  EXPECT_THAT(error("data", "0", "12"), HasSubstr("needs 8 bytes but 12"));
  EXPECT_THAT(error("data", "-4"), HasSubstr("not a count"));
  EXPECT_THAT(error("data", "4x"), HasSubstr("not a count"));
}

TEST_F(ExternalData, IsReadWhereTheCallerHoldsIt) {
  const std::vector<float> numbers = {5, 6, 7};
  const auto decoded = [&](const std::string& location,
                           const std::string& offset) -> Result<Tensor> {
    const auto owner = std::make_shared<const std::string>(
        make::model(graph({}, {}, {}, {external("w", kFloat, {2}, location, offset, "8")})));
    TRY(const Model model, read_model_bytes(*owner, owner, (folder_ / "model").string(), "model",
                                            {{"held", std::as_bytes(std::span(numbers))},
                                             {"../secret", std::as_bytes(std::span(numbers))}}));
    return decode(model, model.graph.initializers[0]);
  };
  EXPECT_EQ(decoded("held", "4")->data(), numbers.data() + 1);
  EXPECT_EQ(decoded("../secret", "0")->get_double(0), 5);  // a name, not a path
  EXPECT_EQ(decoded("data", "0")->get_double(0), 1);       // all others are files
  const auto beyond = decoded("held", "8");
  ASSERT_FALSE(beyond.ok());
  EXPECT_THAT(beyond.error().text(), HasSubstr("'held' has 12 bytes"));
}

TEST(ReadTensor, SparseBecomesDense) {
  const auto sparse = [](const std::string& values, const std::string& indices,
                         std::vector<int64_t> dims) {
    return message([&](pbf_writer& out) {
      out.add_message(1, values);
      out.add_message(2, indices);
      for (const int64_t dim : dims) out.add_int64(3, dim);
    });
  };
  const auto decode_sparse = [](const std::string& bytes) -> Result<Tensor> {
    const std::string body = message([&](pbf_writer& out) { out.add_message(15, bytes); });
    TRY(const Model model, read(make::model(body)));
    return decode(model, model.graph.sparse_initializers[0]);
  };
  const Tensor dense = *decode_sparse(sparse(
      floats("s", {2}, {5, 6}), tensor("", kI64, {2, 2}, raw<int64_t>({0, 1, 1, 2})), {2, 3}));
  EXPECT_EQ(dense.get_double(1), 5);
  EXPECT_EQ(dense.get_double(5), 6);
  EXPECT_EQ(dense.get_double(0), 0);
  const auto outside = decode_sparse(sparse(floats("s", {1}, {5}), ints("", {7}), {2, 3}));
  ASSERT_FALSE(outside.ok());
  EXPECT_THAT(outside.error().text(), HasSubstr("lies outside"));
  EXPECT_THAT(decode_sparse(sparse(floats("s", {1}, {5}), ints("", {7}), {1 << 20, 1 << 20}))
                  .error()
                  .text(),
              HasSubstr("more than 68719476736 elements"));
}

}  // namespace
}  // namespace obelisk::frontends::onnx
