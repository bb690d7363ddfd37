// The parts of the door that touch no socket: what they read may be hostile, what they write must
// be exact.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <protozero/pbf_writer.hpp>
#include <random>
#include <thread>

#include "serve/door/adaptive_spin.h"
#include "serve/door/http.h"
#include "serve/door/infer_json.h"
#include "serve/door/json.h"
#include "serve/door/ledger.h"
#include "serve/door/messages.h"
#include "serve/door/shared_memory.h"
#include "serve/door/tenants.h"
#include "serve/door/wire_types.h"

namespace obelisk::serve::door {
namespace {

const SharedMemory kNoMemory(false);

std::shared_ptr<Received> received(std::string_view json, std::string_view behind = "") {
  auto out = std::make_shared<Received>();
  out->body = Block(json.size() + behind.size(), json.size());
  memcpy(out->body.data(), json.data(), json.size());
  memcpy(out->body.data() + json.size(), behind.data(), behind.size());
  return out;
}
Maybe<Call> parse(std::string_view json, std::string_view behind = "") {
  return parse_infer(received(json, behind), json.size(), kNoMemory);
}
std::string fault_of_json(std::string_view json, std::string_view behind = "") {
  auto call = parse(json, behind);
  return call.ok() ? "" : call.fault().message;
}
template <typename T>
std::vector<T> elements(const InputView& input) {
  std::vector<T> out(input.bytes.size() / sizeof(T));
  memcpy(out.data(), input.bytes.data(), input.bytes.size());
  return out;
}

TEST(Json, StringsAreEscapedAndWhatIsNoTextIsReplaced) {
  std::string out;
  write_string(out, std::string_view("a\"\\\n\x01\xC3\xA9\xFF\xED\xA0\x80\0z", 13));
  EXPECT_EQ(out, "\"a\\\"\\\\\\n\\u0001\xC3\xA9\\ufffd\\ufffd\\ufffd\\ufffd\\u0000z\"");
}

TEST(Json, NumbersComeBackAsTheyWere) {
  const float floats[] = {0.1f, 1,        -3e38f,   std::numeric_limits<float>::denorm_min(),
                          NAN,  INFINITY, -INFINITY};
  std::string out;
  write_numbers(out, DType::f32, reinterpret_cast<const std::byte*>(floats), 7);
  EXPECT_EQ(out, "0.1,1.0,-3e+38,1e-45,NaN,Infinity,-Infinity");
  const uint64_t large[] = {UINT64_MAX};
  out.clear();
  write_numbers(out, DType::u64, reinterpret_cast<const std::byte*>(large), 1);
  EXPECT_EQ(out, "18446744073709551615");
  const uint8_t bits[] = {1, 0};
  out.clear();
  write_numbers(out, DType::b1, reinterpret_cast<const std::byte*>(bits), 2);
  EXPECT_EQ(out, "true,false");
}

TEST(WireTypes, NamesThereAndBack) {
  for (int k = 0; k < kDTypes; ++k)
    EXPECT_EQ(parse_wire_name(wire_name(static_cast<DType>(k))), static_cast<DType>(k));
  EXPECT_FALSE(parse_wire_name("BYTES"));
}

TEST(BodyMemory, LongBodiesShareIt) {
  const auto memory = std::make_shared<BodyMemory>(size_t{1} << 20);
  BodyShare a;
  EXPECT_TRUE(a.hold(memory, 700 << 10));
  {
    BodyShare b, small;
    EXPECT_FALSE(b.hold(memory, 400 << 10));
    EXPECT_TRUE(b.hold(memory, 300 << 10));
    EXPECT_FALSE(b.hold(memory, 325 << 10)) << "it grows beyond";
    EXPECT_EQ(memory->taken(), size_t{1000} << 10) << "what it had stays";
    EXPECT_TRUE(small.hold(memory, BodyMemory::kShort));
    EXPECT_EQ(memory->taken(), size_t{1000} << 10) << "short ones are not counted";
    EXPECT_TRUE(a.hold(memory, 100 << 10)) << "it shrinks";
    EXPECT_TRUE(b.hold(memory, 900 << 10));
  }
  EXPECT_EQ(memory->taken(), size_t{100} << 10);
  EXPECT_EQ(memory->refused(), 2u);
  BodyShare none;
  EXPECT_TRUE(none.hold(nullptr, size_t{1} << 40));
}

TEST(BodyMemory, ManyThreads) {
  const auto memory = std::make_shared<BodyMemory>(size_t{1} << 20);
  std::vector<std::thread> threads;
  std::atomic<int> beyond{0};
  for (int k = 0; k < 4; ++k)
    threads.emplace_back([&] {
      for (int n = 0; n < 5000; ++n) {
        BodyShare one;
        one.hold(memory, size_t{100 + static_cast<size_t>(n) % 400} << 10);
        beyond += memory->taken() > memory->limit();
      }
    });
  for (std::thread& one : threads) one.join();
  EXPECT_EQ(beyond, 0);
  EXPECT_EQ(memory->taken(), 0u);
}

TEST(Tenants, AClassGivesWhatTheRequestLacks) {
  Tenants tenants(
      {{"gold", {.deadline = std::chrono::milliseconds(20), .priority = 2, .weight = 4}},
       {Tenants::kOthers, {.priority = 9}}});
  Request plain, own;
  own.deadline = std::chrono::milliseconds(5), own.priority = 1;
  EXPECT_FALSE(tenants.begin("gold", plain, Clock::now()));
  EXPECT_EQ(plain.deadline, std::chrono::milliseconds(20));
  EXPECT_EQ(plain.priority, 2);
  EXPECT_EQ(plain.weight, 4);
  EXPECT_FALSE(tenants.begin("gold", own, Clock::now()));
  EXPECT_EQ(own.deadline, std::chrono::milliseconds(5));
  EXPECT_EQ(own.priority, 2) << "none is more urgent than the class";
  Request other;
  EXPECT_FALSE(tenants.begin("anybody", other, Clock::now()));
  EXPECT_EQ(other.priority, 9);
  EXPECT_FALSE(other.deadline);
}

TEST(Tenants, ARateWithItsBurst) {
  Tenants tenants({{"slow", {.rate = 10, .burst = 3}}});
  const Clock::time_point start = Clock::now();
  const auto taken = [&](int ms) {
    Request request;
    const auto no = tenants.begin("slow", request, start + std::chrono::milliseconds(ms));
    if (!no) return true;
    EXPECT_TRUE(no->over_quota);
    EXPECT_EQ(no->outcome, Outcome::kRejected);
    EXPECT_EQ(http_status(fault_of(*no).cause), 429);
    EXPECT_EQ(grpc_status(fault_of(*no).cause), 8);
    EXPECT_LE(*no->retry_after, std::chrono::milliseconds(100));
    return false;
  };
  int count = 0;
  for (int ms = 0; ms <= 2000; ++ms) count += taken(ms);
  EXPECT_EQ(count, 3 + 20);
  count = 0;
  for (int k = 0; k < 9; ++k) count += taken(9000);
  EXPECT_EQ(count, 3) << "a pause gives the burst back and no more";
  Request free;
  for (int k = 0; k < 99; ++k) EXPECT_FALSE(tenants.begin("other", free, start));
}

TEST(Tenants, RequestsWithoutAnAnswer) {
  Tenants tenants({{Tenants::kOthers, {.in_flight = 2}}});
  const Clock::time_point now = Clock::now();
  Request request;
  EXPECT_FALSE(tenants.begin("a", request, now));
  EXPECT_FALSE(tenants.begin("a", request, now));
  EXPECT_TRUE(tenants.begin("a", request, now));
  EXPECT_FALSE(tenants.begin("b", request, now)) << "each has its own";
  tenants.ended("a");
  EXPECT_FALSE(tenants.begin("a", request, now));
  EXPECT_TRUE(tenants.begin("a", request, now));
  for (int k = 0; k < 9000; ++k) static_cast<void>(tenants.begin(std::to_string(k), request, now));
  EXPECT_TRUE(tenants.begin("9001", request, now)) << "beyond 4096 names they share one account";
}

TEST(InferJson, NestedDataParametersAndOutputs) {
  auto call = parse(
      R"({"id":"7","model_name":"ignored","parameters":{"timeout":1500,"priority":2,"tenant":"t","trace":true,"own":{"x":[1]}},
    "inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2.5],[-3e2,4]]},{"name":"y","shape":[1],"datatype":"INT8","data":[-128]}],
    "outputs":[{"name":"o","parameters":{"binary_data":true}}]})");
  ASSERT_TRUE(call.ok()) << call.fault().message;
  const Request& request = call->request;
  EXPECT_EQ(request.id, "7");
  EXPECT_EQ(*request.deadline, std::chrono::microseconds(1500));
  EXPECT_EQ(request.priority, 2);
  EXPECT_EQ(request.tenant, "t");
  EXPECT_TRUE(request.trace);
  ASSERT_EQ(request.inputs.size(), 2u);
  EXPECT_EQ(elements<float>(request.inputs[0]), (std::vector<float>{1, 2.5, -300, 4}));
  EXPECT_EQ(elements<int8_t>(request.inputs[1]), std::vector<int8_t>{-128});
  EXPECT_EQ(request.outputs, std::vector<std::string>{"o"});
  EXPECT_EQ(call->wanted[0].binary, true);
}

TEST(InferJson, TensorsBehindTheJsonAreNotMovedWhereTheyAreAligned) {
  const std::string json =
      R"({"inputs":[{"name":"a","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}},
    {"name":"b","shape":[3],"datatype":"BOOL","parameters":{"binary_data_size":3}},{"name":"c","shape":[1],"datatype":"INT64","parameters":{"binary_data_size":8}}]})";
  std::string behind(19, '\0');
  const float values[] = {1, 2};
  memcpy(behind.data(), values, 8);
  behind[8] = 1;
  behind[11] = 5;
  auto call = parse(json, behind);
  ASSERT_TRUE(call.ok()) << call.fault().message;
  EXPECT_EQ(call->request.inputs[0].bytes.data(), call->received->body.data() + json.size());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(call->request.inputs[0].bytes.data()) % 64, 0u);
  EXPECT_EQ(elements<float>(call->request.inputs[0]), (std::vector<float>{1, 2}));
  EXPECT_EQ(elements<int64_t>(call->request.inputs[2]), std::vector<int64_t>{5});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(call->request.inputs[2].bytes.data()) % 8, 0u);
}

TEST(InferJson, RefusalsSayGotAndWanted) {
  const auto input = [](const std::string& rest) {
    return R"({"inputs":[{"name":"x",)" + rest + "}]}";
  };
  const std::pair<std::string, std::string> cases[] = {
      {"", "no JSON"},
      {"{", "no JSON"},
      {"[1]", "no JSON object"},
      {"{}", "'inputs'"},
      {R"({"inputs":3})", "'inputs'"},
      {R"({"inputs":[3]})", "no JSON object"},
      {R"({"inputs":[{}]})", "'name'"},
      {input(R"("shape":[1],"data":[1])"), "'datatype'"},
      {input(R"("datatype":"FP32","data":[1])"), "'shape'"},
      {input(R"("datatype":"FP33","shape":[1],"data":[1])"), "'FP33'"},
      {input(R"("datatype":"BYTES","shape":[1],"data":["a"])"), "strings"},
      {input(R"("datatype":"FP32","shape":[-1],"data":[1])"), "'shape'"},
      {input(R"("datatype":"FP32","shape":[2],"data":[1])"), "1 elements"},
      {input(R"("datatype":"FP32","shape":[1],"data":[1,2])"), "more than the 1"},
      {input(R"("datatype":"FP32","shape":[1],"data":["a"])"), "element 0"},
      {input(R"("datatype":"UINT8","shape":[1],"data":[256])"), "no UINT8"},
      {input(R"("datatype":"INT32","shape":[1],"data":[1.5])"), "no INT32"},
      {input(R"("datatype":"BOOL","shape":[1],"data":[2])"), "no BOOL"},
      {input(R"("datatype":"FP32","shape":[1])"), "no 'data'"},
      {input(R"("datatype":"FP32","shape":[9223372036854775807,9223372036854775807],"data":[])"),
       "no tensor has"},
      {input(R"("datatype":"FP32","shape":[1000000000],"data":[1])"), "its data is shorter"},
      {input(R"("datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8})"),
       "only 0 are left"},
      {input(R"("datatype":"FP32","shape":[2],"parameters":{"binary_data_size":-8})"),
       "no number of bytes"},
      {input(
           R"("datatype":"FP32","shape":[2],"parameters":{"shared_memory_region":"r","shared_memory_byte_size":8})"),
       "switched off"},
      {R"({"parameters":{"timeout":-1},"inputs":[]})", "'timeout'"},
      {R"({"parameters":{"priority":"high"},"inputs":[]})", "'priority'"},
      {R"({"parameters":{"sequence_id":7},"inputs":[]})", "'sequence_id'"},
      {R"({"inputs":[],"outputs":[{"name":"o"},{"name":"o"}]})", "twice"},
      {R"({"inputs":[],"outputs":[{"name":"o","parameters":{"classification":3}}]})",
       "classification"},
      {std::string(5000, '['), "no JSON"}};
  for (const auto& [json, word] : cases)
    EXPECT_NE(fault_of_json(json).find(word), std::string::npos) << json.substr(0, 200) << "\n"
                                                                 << fault_of_json(json);
  EXPECT_NE(fault_of_json(R"({"inputs":[]})", "1234").find("4 bytes are left"), std::string::npos);
  const std::string one = R"({"name":"x","datatype":"FP32","shape":[1],"data":[1]})";
  EXPECT_NE(fault_of_json("{\"inputs\":[" + one + "," + one + "]}").find("twice"),
            std::string::npos);
  EXPECT_NE(
      fault_of_json(input(R"("datatype":"BOOL","shape":[1],"parameters":{"binary_data_size":1})"),
                    "\x02")
          .find("other than 0 and 1"),
      std::string::npos);
}

std::string proto_request() {
  std::string text;
  protozero::pbf_writer request(text);
  request.add_string(1, "m");
  request.add_string(3, "id");
  {
    protozero::pbf_writer entry(request, 4);
    entry.add_string(1, "timeout");
    protozero::pbf_writer(entry, 2).add_int64(2, 7000);
  }
  for (const char* name : {"x", "y"}) {
    protozero::pbf_writer input(request, 5);
    input.add_string(1, name);
    input.add_string(2, "FP32");
    const int64_t shape[] = {1, 2};
    input.add_packed_int64(3, shape, shape + 2);
  }
  const float values[] = {1, 2};
  request.add_bytes(7, reinterpret_cast<const char*>(values), 8);
  request.add_bytes(7, reinterpret_cast<const char*>(values), 8);
  return text;
}

TEST(Messages, RequestsWithRawContents) {
  const std::string text = proto_request();
  const size_t offset = first_tensor_offset(text);
  float first;
  ASSERT_LE(offset + 4, text.size());
  memcpy(&first, text.data() + offset, 4);
  EXPECT_EQ(first, 1);
  auto message = std::make_shared<Received>();
  message->body = Block(text.size(), offset);
  memcpy(message->body.data(), text.data(), text.size());
  auto call = read_infer(message, kNoMemory);
  ASSERT_TRUE(call.ok()) << call.fault().message;
  EXPECT_EQ(call->request.model, "m");
  EXPECT_EQ(*call->request.deadline, std::chrono::microseconds(7000));
  ASSERT_EQ(call->request.inputs.size(), 2u);
  EXPECT_EQ(call->request.inputs[0].bytes.data(), message->body.data() + offset);
  EXPECT_EQ(elements<float>(call->request.inputs[1]), (std::vector<float>{1, 2}));
}

TEST(Messages, TypedContents) {
  std::string text;
  protozero::pbf_writer request(text);
  request.add_string(1, "m");
  {
    protozero::pbf_writer input(request, 5);
    input.add_string(1, "x");
    input.add_string(2, "INT8");
    input.add_int64(3, 3);  // not packed
    protozero::pbf_writer contents(input, 5);
    const int32_t values[] = {-128, 0, 127};
    contents.add_packed_int32(2, values, values + 3);
  }
  auto call = read_infer(received(text), kNoMemory);
  ASSERT_TRUE(call.ok()) << call.fault().message;
  EXPECT_EQ(elements<int8_t>(call->request.inputs[0]), (std::vector<int8_t>{-128, 0, 127}));

  text.clear();
  {
    protozero::pbf_writer input(request, 5);
    input.add_string(1, "x");
    input.add_string(2, "INT8");
    input.add_int64(3, 1);
    protozero::pbf_writer contents(input, 5);
    contents.add_int32(2, 128);
  }
  auto wrong = read_infer(received(text), kNoMemory);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.fault().message.find("out of the range"), std::string::npos);
}

/// Bytes changed, left out, doubled: each must be read or refused, never crash. Under sanitizers
/// this looks at every access.
template <typename Read>
void mutate(const std::string& seed, int rounds, Read read) {
  std::mt19937 random(7);
  for (int round = 0; round < rounds; ++round) {
    std::string text = seed;
    for (unsigned change = random() % 4 + 1; change > 0 && !text.empty(); --change) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 8 + 1);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), random() % 32));
          break;
        default:
          text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
      }
    }
    read(text);
  }
}

TEST(Hostile, MutatedJson) {
  int fine = 0;
  mutate(
      R"({"id":"7","parameters":{"timeout":1500,"priority":2},"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2.5],[-3e2,4]]},{"name":"b","shape":[2],"datatype":"INT8","parameters":{"binary_data_size":2}}],"outputs":[{"name":"o"}]})",
      20000, [&](const std::string& text) { fine += parse(text, "ab").ok(); });
  EXPECT_GT(fine, 0);
  EXPECT_LT(fine, 20000);
}

TEST(Hostile, MutatedMessages) {
  int fine = 0;
  mutate(proto_request(), 20000, [&](const std::string& text) {
    first_tensor_offset(text);
    fine += read_infer(received(text), kNoMemory).ok();
    (void)read_named(text).ok(), (void)read_load(text).ok(), (void)read_region(text).ok(),
        (void)read_index_ready(text).ok();
    (void)read_log_settings(text, {}).ok(), (void)read_changes_trace(text).ok();
  });
  EXPECT_GT(fine, 0);
  EXPECT_LT(fine, 20000);
}

std::string deflated(const std::string& text, int window) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, window, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data())),
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data()),
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(Inflate, BothFormatsAndNoBombs) {
  const auto bytes = [](const std::string& text) {
    return std::span(reinterpret_cast<const std::byte*>(text.data()), text.size());
  };
  const std::string text(100000, 'x');
  for (int window : {MAX_WBITS, MAX_WBITS + 16}) {
    const std::string packed = deflated(text, window);
    auto out = inflated(bytes(packed), 1 << 20, 0);
    ASSERT_TRUE(out.ok());
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(out->data()), out->size()), text);
    auto bomb = inflated(bytes(packed), 99999, 0);
    ASSERT_FALSE(bomb.ok());
    EXPECT_EQ(bomb.fault().cause, Cause::kTooLarge);
    EXPECT_EQ(inflated(bytes(packed.substr(0, packed.size() - 5)), 1 << 20, 0).fault().cause,
              Cause::kBadRequest);
  }
  EXPECT_EQ(inflated(bytes("not packed"), 1 << 20, 0).fault().cause, Cause::kBadRequest);
  mutate(deflated(text, MAX_WBITS), 500,
         [&](const std::string& packed) { (void)inflated(bytes(packed), 1 << 20, 0).ok(); });
}

TEST(Paths, AreDecodedOrRefused) {
  EXPECT_EQ(percent_decoded("a%2Fb%20c"), "a/b c");
  EXPECT_FALSE(percent_decoded("%2"));
  EXPECT_FALSE(percent_decoded("%zz"));
}

TEST(Ledger, QuantilesAreWithinABucketOfTheTruth) {
  Histogram times;
  for (int k = 1; k <= 1000; ++k) times.add(std::chrono::microseconds(k));
  EXPECT_NEAR(times.quantile_us(0.5), 500, 500 * 0.1);
  EXPECT_NEAR(times.quantile_us(0.99), 990, 990 * 0.1);
  EXPECT_EQ(times.count(), 1000u);
  EXPECT_NEAR(static_cast<double>(times.at_most(500)), 500, 50);
}

TEST(Ledger, DeadlinesAreMetByAnswersInTimeOnly) {
  Ledger ledger;
  const auto now = Clock::now();
  const auto end = [&](Outcome outcome, std::optional<std::chrono::nanoseconds> deadline,
                       std::chrono::nanoseconds ago) {
    ledger.begin();
    Answer answer;
    answer.outcome = outcome;
    ledger.end({"m", "t", now - ago, deadline}, answer);
  };
  using namespace std::chrono_literals;
  end(Outcome::kOk, 1h, 0s);
  end(Outcome::kOk, 1s, 10s);
  end(Outcome::kRejected, 1h, 0s);
  end(Outcome::kBadRequest, 1h, 0s);
  end(Outcome::kOk, std::nullopt, 0s);
  const auto snapshot = ledger.snapshot();
  const Account& account = snapshot.accounts.at({"t", "m"});
  EXPECT_EQ(account.of(Outcome::kOk), 3u);
  EXPECT_EQ(account.with_deadline, 3u);
  EXPECT_EQ(account.in_time, 1u);
  EXPECT_EQ(snapshot.refusals.size(), 2u);
  EXPECT_EQ(ledger.in_flight(), 0);
}

TEST(SharedMemoryTest, KeysLeadNowhereElse) {
  SharedMemory memory(true);
  for (const char* key : {"", "/", "../etc/passwd", "/a/b", "not-there-at-all"}) {
    const Checked wrong = memory.register_region({"r", key, 0, 16});
    ASSERT_TRUE(wrong) << key;
    EXPECT_EQ(wrong->cause, Cause::kBadRequest);
  }
  EXPECT_EQ(memory.view({"r", 0, 1}).fault().message, "there is no region 'r'");
}

TEST(AdaptiveSpin, PollsWhereWaitsAreShort) {
  AdaptiveSpin spin(std::chrono::microseconds(100));
  for (int k = 0; k < 8; ++k) spin.waited(std::chrono::microseconds(40));
  EXPECT_EQ(spin.limit(), std::chrono::microseconds(100));
  for (int k = 0; k < 8; ++k) spin.waited(std::chrono::seconds(1));
  EXPECT_EQ(spin.limit().count(), 0) << "a quiet server does not poll";
  int short_ones = 0;
  for (; spin.limit().count() == 0 && short_ones < 100; ++short_ones)
    spin.waited(std::chrono::microseconds(40));
  EXPECT_GT(short_ones, 1);
  EXPECT_LT(short_ones, 30) << "and begins again after a few quick requests";
  AdaptiveSpin none(std::chrono::microseconds(0));
  none.waited(std::chrono::microseconds(1));
  EXPECT_EQ(none.limit().count(), 0);
}

}  // namespace
}  // namespace obelisk::serve::door
