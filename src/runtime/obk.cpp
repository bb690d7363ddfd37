#include "runtime/obk.h"

#include <string.h>

#include <array>
#include <limits>
#include <map>

namespace obelisk::runtime {
namespace {

constexpr char kMagic[4] = {'O', 'B', 'K', '\x1a'};
constexpr uint32_t kVersion = 2;
enum Section : uint32_t { kTables, kGraph, kBodies, kObjects, kWeights, kSections };
constexpr size_t kHeaderBytes = 24, kEntryBytes = 40, kDirectory = kHeaderBytes + kSections * kEntryBytes, kFirst = kDirectory + 16;

class Writer {
 public:
  std::string out;
  template <typename T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void size(size_t value) { number<uint64_t>(value); }
  void text(std::string_view value) { size(value.size()), out += value; }
  void ints(const std::vector<int64_t>& values) {
    size(values.size());
    for (int64_t value : values) number(value);
  }
  void type(const Type& type) { number<uint8_t>(static_cast<uint8_t>(type.dtype)), ints(type.shape); }
  void place(const Place& place) { number<uint8_t>(static_cast<uint8_t>(place.kind)), number(place.index); }
  void tensor(const Tensor& tensor) { type(tensor.type()), out.append(static_cast<const char*>(tensor.data()), tensor.bytes()); }
};

struct Damaged : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads what Writer wrote; throws Damaged (caught in parse_obk) where the bytes do not hold what they claim.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  std::string_view take(uint64_t count) {
    if (count > left_.size()) throw Damaged("a table ends early");
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }
  template <typename T>
  T number() {
    T value;
    memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  /// A count of things that take at least `least` bytes each, so that memory stays bounded by the file.
  size_t count(size_t least) {
    const uint64_t value = number<uint64_t>();
    if (value > left_.size() / least) throw Damaged("a table claims more entries than it has bytes");
    return value;
  }
  std::string text() { return std::string(take(count(1))); }
  std::vector<int64_t> ints() {
    std::vector<int64_t> values(count(8));
    for (int64_t& value : values) value = number<int64_t>();
    return values;
  }
  int64_t within(int64_t value, int64_t low, int64_t high, const char* what) {  // [low, high)
    if (value < low || value >= high) throw Damaged(fmt::format("{} {} is not in [{}, {})", what, value, low, high));
    return value;
  }
  Type type() {
    Type type;
    type.dtype = static_cast<DType>(within(number<uint8_t>(), 0, kDTypes, "element type"));
    type.shape = ints();
    const auto elements = checked_element_count(type.shape);
    if (!elements || *elements > (int64_t{1} << 40)) throw Damaged(fmt::format("the shape {} is beyond any reason", to_string(type.shape)));
    return type;
  }
  Tensor tensor() {
    const Type type = this->type();
    const std::string_view bytes = take(static_cast<uint64_t>(type.bytes()));
    Tensor tensor = Tensor::allocate(type);
    if (!bytes.empty()) memcpy(tensor.mutable_data(), bytes.data(), bytes.size());
    return tensor;
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::string_view left_;
};

void write_attr(Writer& to, const ops::Attr& attr) {
  to.number<uint8_t>(static_cast<uint8_t>(attr.index()));
  if (const auto* value = std::get_if<int64_t>(&attr)) to.number(*value);
  if (const auto* value = std::get_if<double>(&attr)) to.number(*value);
  if (const auto* value = std::get_if<std::string>(&attr)) to.text(*value);
  if (const auto* value = std::get_if<std::vector<int64_t>>(&attr)) to.ints(*value);
  if (const auto* value = std::get_if<std::vector<double>>(&attr)) {
    to.size(value->size());
    for (double each : *value) to.number(each);
  }
  if (const auto* value = std::get_if<Tensor>(&attr)) to.tensor(*value);
}

ops::Attr read_attr(Reader& from) {
  switch (from.within(from.number<uint8_t>(), 0, 6, "attribute kind")) {
    case 0: return from.number<int64_t>();
    case 1: return from.number<double>();
    case 2: return from.text();
    case 3: return from.ints();
    case 4: {
      std::vector<double> values(from.count(8));
      for (double& value : values) value = from.number<double>();
      return values;
    }
    default: return from.tensor();
  }
}

/// Weights by content: equal bytes are stored once.
class WeightStore {
 public:
  int64_t add(const Tensor& tensor) {  // the offset of its bytes
    const Hash hash = hash_bytes(tensor.data(), tensor.bytes());
    auto [at, fresh] = offsets_.try_emplace({hash, tensor.bytes()}, static_cast<int64_t>(bytes.size()));
    if (fresh) {
      bytes.append(static_cast<const char*>(tensor.data()), tensor.bytes());
      bytes.resize((bytes.size() + 63) / 64 * 64);
    }
    return at->second;
  }
  std::string bytes;

 private:
  std::map<std::pair<Hash, int64_t>, int64_t> offsets_;
};

void write_tables(const Program& p, WeightStore& weights, Writer& to) {
  to.text(p.name), to.text(p.target), to.text(p.granularity);
  to.number<int32_t>(p.sms), to.number<int32_t>(p.waves), to.number(p.arena.count), to.number(p.scratch.count);
  for (const auto* ports : {&p.inputs, &p.outputs}) {
    to.size(ports->size());
    for (const Port& port : *ports) to.text(port.name), to.type(port.type);
  }
  to.size(p.weights.size());
  for (const Tensor& weight : p.weights) {
    to.number<uint8_t>(!weight.empty());
    if (!weight.empty()) to.type(weight.type()), to.number(weights.add(weight));
  }
  to.size(p.customs.size());
  for (const CustomRecord& custom : p.customs) {
    to.text(ops::to_string(custom.op)), to.text(custom.name);
    to.size(custom.attrs.all().size());
    for (const auto& [name, attr] : custom.attrs.all()) to.text(name), write_attr(to, attr);
    to.size(custom.inputs.size());
    for (size_t k = 0; k < custom.inputs.size(); ++k) to.number<int32_t>(custom.inputs[k]), to.type(custom.input_types[k]);
    to.size(custom.outputs.size());
    for (size_t k = 0; k < custom.outputs.size(); ++k) to.number<int32_t>(custom.outputs[k]), to.type(custom.output_types[k]);
  }
  to.size(p.works.size());
  for (const WorkRecord& work : p.works) {
    to.number(work.body), to.number(work.custom), to.number(work.scratch), to.number(work.row_scratch), to.ints(work.params);
    to.text(work.label), to.number(work.floor_nanos), to.number(work.task_nanos);
    to.size(work.operands.size());
    for (const Place& place : work.operands) to.place(place);
  }
  to.size(p.lists.size());
  for (const auto& list : p.lists) {
    to.size(list.size());
    for (const ObkTask& task : list) {
      to.number(task.work), to.number(task.wave);
      for (int64_t each : {task.r0, task.r1, task.c0, task.c1, task.weights}) to.number(each);
      for (int32_t each : {task.weight_bytes, task.weight_group}) to.number(each);
    }
  }
  to.size(p.copies.size());
  for (const Program::Copy& copy : p.copies) to.number<int32_t>(copy.output), to.place(copy.from);
}

/// A view of the weights section, checked to lie inside of it.
Tensor weight_view(Reader& from, std::string_view section, const std::shared_ptr<const void>& owner) {
  const Type type = from.type();
  const int64_t offset = from.number<int64_t>(), size = static_cast<int64_t>(section.size());
  if (offset < 0 || offset % 64 != 0 || offset > size || type.bytes() > size - offset)
    throw Damaged(fmt::format("a weight of {} bytes at {} does not lie in the weights", type.bytes(), offset));
  static const char empty = 0;
  return Tensor::view(type, section.empty() ? &empty : section.data() + offset, owner);
}

Place read_place(Reader& from, const Program& p) {
  Place place;
  place.kind = static_cast<BufferKind>(from.within(from.number<uint8_t>(), 0, 4, "kind of place"));
  place.index = from.number<int64_t>();
  const int64_t counts[] = {static_cast<int64_t>(p.inputs.size()), static_cast<int64_t>(p.outputs.size()), static_cast<int64_t>(p.weights.size()), p.arena.count + 1};
  from.within(place.index, 0, counts[static_cast<int>(place.kind)], "place");
  return place;
}

void read_tables(Reader& from, Program& p, std::string_view weights, const std::shared_ptr<const void>& owner) {
  p.name = from.text(), p.target = from.text(), p.granularity = from.text();
  p.sms = static_cast<int>(from.within(from.number<int32_t>(), 1, 1 << 16, "number of virtual SMs"));
  p.waves = static_cast<int>(from.within(from.number<int32_t>(), 0, 1 << 24, "number of waves"));
  p.arena = {from.within(from.number<int64_t>(), 0, int64_t{1} << 44, "arena")};
  p.scratch = {from.within(from.number<int64_t>(), 0, int64_t{1} << 36, "scratch")};
  for (auto* ports : {&p.inputs, &p.outputs}) {
    ports->resize(from.count(17));
    for (Port& port : *ports) port.name = from.text(), port.type = from.type();
  }
  p.weights.resize(from.count(1));
  for (Tensor& weight : p.weights)
    if (from.number<uint8_t>()) weight = weight_view(from, weights, owner);
  const size_t customs = from.count(40);
  for (size_t c = 0; c < customs; ++c) {
    CustomRecord custom{};
    const std::string op = from.text();
    const auto known = ops::parse_op(op);
    if (!known) throw Damaged(fmt::format("there is no op '{}'", op));
    custom.op = *known, custom.name = from.text();
    for (size_t k = from.count(9); k > 0; --k) {
      std::string name = from.text();
      custom.attrs.set(std::move(name), read_attr(from));
    }
    for (auto [list, types] : {std::pair{&custom.inputs, &custom.input_types}, std::pair{&custom.outputs, &custom.output_types}}) {
      for (size_t k = from.count(13); k > 0; --k) list->push_back(from.number<int32_t>()), types->push_back(from.type());
    }
    p.customs.push_back(std::move(custom));
  }
  p.works.resize(from.count(64));
  for (WorkRecord& work : p.works) {
    work.body = static_cast<int32_t>(from.within(from.number<int32_t>(), -1, static_cast<int64_t>(p.bodies.size()), "body"));
    work.custom = static_cast<int32_t>(from.within(from.number<int32_t>(), -1, static_cast<int64_t>(p.customs.size()), "custom op"));
    if ((work.body < 0) == (work.custom < 0)) throw Damaged("a work has neither a body nor an op, or both");
    work.scratch = from.within(from.number<int64_t>(), 0, int64_t{1} << 36, "scratch");
    work.row_scratch = from.within(from.number<int64_t>(), 0, work.scratch + 1, "scratch of a row");
    work.params = from.ints();
    work.label = from.text(), work.floor_nanos = from.number<double>(), work.task_nanos = from.number<double>();
    work.operands.resize(from.count(9));
    for (Place& place : work.operands) place = read_place(from, p);
    if (work.custom < 0) continue;
    for (const auto* list : {&p.customs[work.custom].inputs, &p.customs[work.custom].outputs})
      for (int operand : *list) from.within(operand, -1, static_cast<int64_t>(work.operands.size()), "operand");
  }
  p.lists.resize(from.within(from.number<int64_t>(), p.sms, p.sms + 1, "number of lists"));
  for (auto& list : p.lists) {
    list.resize(from.count(56));
    uint32_t before = 0;
    for (ObkTask& task : list) {
      task = ObkTask{};
      task.work = static_cast<uint32_t>(from.within(from.number<uint32_t>(), 0, static_cast<int64_t>(p.works.size()), "work"));
      task.wave = static_cast<uint32_t>(from.within(from.number<uint32_t>(), before, p.waves, "wave"));
      before = task.wave;
      for (int64_t* each : {&task.r0, &task.r1, &task.c0, &task.c1, &task.weights}) *each = from.number<int64_t>();
      for (int32_t* each : {&task.weight_bytes, &task.weight_group}) *each = from.number<int32_t>();
    }
  }
  p.copies.resize(from.count(13));
  for (Program::Copy& copy : p.copies) {
    copy.output = static_cast<int>(from.within(from.number<int32_t>(), 0, static_cast<int64_t>(p.outputs.size()), "output"));
    copy.from = read_place(from, p);
  }
  if (!p.objects.empty() && p.objects.size() != (p.on_gpu() ? 1 : p.bodies.size())) throw Damaged("machine code for another number of bodies");
  if (!from.at_end()) throw Damaged("bytes after the last table");
}

void read_code(Reader bodies, Reader objects, Program& p) {
  p.bodies.resize(bodies.count(16));
  for (codegen::BodyText& body : p.bodies) {
    body.label = bodies.text(), body.text = bodies.text();
    body.hash = hash_text(body.text);
  }
  p.objects_need = objects.text();
  p.objects.resize(objects.count(8));
  for (std::string& object : p.objects) object = objects.text();
}

}  // namespace

std::string obk_bytes(const Program& program, const graph::Graph& graph) {
  std::array<std::string, kSections> sections;
  WeightStore weights;
  Writer tables, text, bodies, objects;
  write_tables(program, weights, tables);
  text.text(graph::print(graph));
  const graph::Weights of_graph = graph::collect_weights(graph);
  text.size(of_graph.size());
  for (const auto& [hash, tensor] : of_graph)
    text.number(hash.high), text.number(hash.low), text.type(tensor.type()), text.number(weights.add(tensor));
  bodies.size(program.bodies.size());
  for (const codegen::BodyText& body : program.bodies) bodies.text(body.label), bodies.text(body.text);
  objects.text(program.objects_need), objects.size(program.objects.size());
  for (const std::string& object : program.objects) objects.text(object);
  sections = {std::move(tables.out), std::move(text.out), std::move(bodies.out), std::move(objects.out), std::move(weights.bytes)};

  Writer header, directory;
  size_t offset = (kFirst + 63) / 64 * 64;
  for (uint32_t kind = 0; kind < kSections; ++kind) {
    const Hash hash = hash_bytes(sections[kind].data(), sections[kind].size());
    directory.number(kind), directory.number<uint32_t>(0);
    directory.size(offset), directory.size(sections[kind].size()), directory.number(hash.high), directory.number(hash.low);
    offset = (offset + sections[kind].size() + 63) / 64 * 64;
  }
  header.out.append(kMagic, sizeof kMagic);
  header.number(kVersion), header.size(offset), header.number<uint32_t>(kSections), header.number<uint32_t>(0);
  header.out += directory.out;
  const Hash hash = hash_bytes(header.out.data(), header.out.size());
  header.number(hash.high), header.number(hash.low);
  std::string out = std::move(header.out);
  out.reserve(offset);
  for (std::string& section : sections) {
    out.resize((out.size() + 63) / 64 * 64);
    out += section;
    std::string().swap(section);
  }
  out.resize(offset);
  return out;
}

Result<Compiled> parse_obk(const void* data, size_t size, std::shared_ptr<const void> owner, const std::string& name, bool check_weights) {
  const std::string_view file(static_cast<const char*>(data), size);
  const auto bad = [&](std::string message) {
    return Error{Code::kBadModel, "runtime", fmt::format("'{}' is damaged: {}", name, message), "", "compile it again from its model"};
  };
  if (size < kFirst || memcmp(file.data(), kMagic, sizeof kMagic) != 0) return bad(size < kFirst ? "it ends early" : "it is no compiled file");
  Reader header(file.substr(sizeof kMagic, kHeaderBytes - sizeof kMagic));
  const uint32_t version = header.number<uint32_t>();
  if (version != kVersion)
    return Error{Code::kBadModel, "runtime", fmt::format("'{}' has format version {}, but this program reads {}", name, version, kVersion), "", "compile it again from its model"};
  const uint64_t claimed = header.number<uint64_t>();
  const uint32_t sections = header.number<uint32_t>();
  if (claimed != size) return bad(fmt::format("it says that it has {} bytes, but it has {}", claimed, size));
  if (sections != kSections) return bad(fmt::format("it says that it has {} sections", sections));
  const Hash own = hash_bytes(file.data(), kDirectory);
  Reader stored(file.substr(kDirectory, 16));
  if (stored.number<uint64_t>() != own.high || stored.number<uint64_t>() != own.low) return bad("the checksum of its header is wrong");
  std::array<std::string_view, kSections> parts;
  Reader directory(file.substr(kHeaderBytes, kSections * kEntryBytes));
  for (uint32_t kind = 0; kind < kSections; ++kind) {
    const uint32_t stored_kind = directory.number<uint32_t>();
    directory.number<uint32_t>();
    const uint64_t offset = directory.number<uint64_t>(), bytes = directory.number<uint64_t>();
    Hash hash;
    hash.high = directory.number<uint64_t>(), hash.low = directory.number<uint64_t>();
    if (stored_kind != kind || offset > size || bytes > size - offset || offset % 64 != 0) return bad(fmt::format("section {} lies outside of it", kind));
    parts[kind] = file.substr(offset, bytes);
    const bool lazy = kind == kWeights && static_cast<int64_t>(bytes) > kEagerWeights && !check_weights;
    if (!lazy && hash_bytes(parts[kind].data(), bytes) != hash) return bad(fmt::format("the checksum of section {} is wrong", kind));
  }
  try {
    Compiled compiled;
    compiled.program = std::make_shared<Program>();
    read_code(Reader(parts[kBodies]), Reader(parts[kObjects]), *compiled.program);
    Reader tables(parts[kTables]);
    read_tables(tables, *compiled.program, parts[kWeights], owner);
    Reader graph(parts[kGraph]);
    compiled.graph_text = graph.text();
    for (size_t k = graph.count(33); k > 0; --k) {
      Hash hash;
      hash.high = graph.number<uint64_t>(), hash.low = graph.number<uint64_t>();
      compiled.graph_weights[hash] = weight_view(graph, parts[kWeights], owner);
    }
    return compiled;
  } catch (const Damaged& damage) {
    return bad(damage.what());
  }
}

Result<Compiled> open_obk(const std::string& path, bool check_weights) {
  TRY(const auto file, MappedFile::open(path));
  return parse_obk(file->data(), file->size(), file, path, check_weights);
}

}  // namespace obelisk::runtime
