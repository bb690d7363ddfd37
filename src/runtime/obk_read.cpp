#include <string.h>

#include <array>
#include <map>
#include <set>

#include "passes/passes.h"
#include "runtime/obk_format.h"
#include "runtime/runtime.h"

namespace obelisk::runtime {
namespace {

using namespace obk_format;

struct Damaged : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads what Writer wrote; throws Damaged (caught in parse_obk) where the bytes do not hold what
/// they claim.
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
  /// A count of things that take at least `least` bytes each, so that memory stays bounded by the
  /// file.
  size_t count(size_t least) {
    const uint64_t value = number<uint64_t>();
    if (value > left_.size() / least)
      throw Damaged("a table claims more entries than it has bytes");
    return value;
  }
  std::string text() { return std::string(take(count(1))); }
  std::vector<int64_t> ints() {
    std::vector<int64_t> values(count(8));
    for (int64_t& value : values) value = number<int64_t>();
    return values;
  }
  int64_t within(int64_t value, int64_t low, int64_t high, const char* what) {  // [low, high)
    if (value < low || value >= high)
      throw Damaged(fmt::format("{} {} is not in [{}, {})", what, value, low, high));
    return value;
  }
  Type type() {
    Type type;
    type.dtype = static_cast<DType>(within(number<uint8_t>(), 0, kDTypes, "element type"));
    type.shape = ints();
    const auto elements = checked_element_count(type.shape);
    if (!elements || *elements > (int64_t{1} << 40))
      throw Damaged(fmt::format("the shape {} is beyond any reason", to_string(type.shape)));
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

ops::Attr read_attr(Reader& from) {
  switch (from.within(from.number<uint8_t>(), 0, 6, "attribute kind")) {
    case 0:
      return from.number<int64_t>();
    case 1:
      return from.number<double>();
    case 2:
      return from.text();
    case 3:
      return from.ints();
    case 4: {
      std::vector<double> values(from.count(8));
      for (double& value : values) value = from.number<double>();
      return values;
    }
    default:
      return from.tensor();
  }
}

/// The weights section: its bytes and what lies where, checked to lie inside of it.
struct WeightSection {
  std::string_view bytes;
  std::shared_ptr<const void> owner;
  std::vector<Stored> stored;

  void read(Reader& from) {
    stored.resize(from.count(32));
    const int64_t size = static_cast<int64_t>(bytes.size());
    for (Stored& one : stored) {
      one.offset = from.number<int64_t>(), one.bytes = from.number<int64_t>();
      one.hash.high = from.number<uint64_t>(), one.hash.low = from.number<uint64_t>();
      if (one.offset < 0 || one.offset % 64 != 0 || one.offset > size || one.bytes < 0 ||
          one.bytes > size - one.offset)
        throw Damaged(fmt::format("a weight of {} bytes at {} does not lie in the weights",
                                  one.bytes, one.offset));
    }
  }
  Hash hash() const {
    std::string all;
    for (const Stored& one : stored) all += to_string(one.hash);
    return hash_text(all);
  }
  Tensor view(Reader& from) const {
    const Type type = from.type();
    const Stored& one = stored[from.within(from.number<int32_t>(), 0,
                                           static_cast<int64_t>(stored.size()), "weight")];
    if (type.bytes() != one.bytes)
      throw Damaged(fmt::format("a weight {} has {} bytes", to_string(type), one.bytes));
    static const char empty = 0;
    return Tensor::view(type, bytes.empty() ? &empty : bytes.data() + one.offset, owner);
  }
};

Packing read_packing(Reader& from, const std::string& target, const std::vector<Tensor>& weights) {
  const kernels::TileLibrary* tiles = tiles_of(target);
  if (!tiles) throw Damaged(fmt::format("there is no target '{}'", target));
  Packing packing;
  packing.weight = static_cast<int>(from.within(
      from.number<int32_t>(), 0, static_cast<int64_t>(weights.size()), "packed weight"));
  packing.recipe.kind =
      static_cast<PackRecipe::Kind>(from.within(from.number<uint8_t>(), 0, 3, "kind of packing"));
  for (const auto number : kRecipeNumbers) packing.recipe.*number = from.number<int64_t>();
  packing.type = from.type();
  const auto bytes = packed_bytes(*tiles, packing.recipe, packing.type);
  if (!bytes || weights[packing.weight].empty() || *bytes != weights[packing.weight].bytes())
    throw Damaged(fmt::format("a packed weight is not what {} packs to", to_string(packing.type)));
  return packing;
}

Place read_place(Reader& from, const Program& p) {
  Place place;
  place.kind = static_cast<BufferKind>(from.within(from.number<uint8_t>(), 0, 4, "kind of place"));
  place.index = from.number<int64_t>();
  const int64_t counts[] = {static_cast<int64_t>(p.inputs.size()),
                            static_cast<int64_t>(p.outputs.size()),
                            static_cast<int64_t>(p.weights.size()), p.arena.count + 1};
  from.within(place.index, 0, counts[static_cast<int>(place.kind)], "place");
  return place;
}

void read_in_place(Reader& from, Program& p) {
  std::set<int> taken;
  for (Port& port : p.outputs) {
    port.in_place_of = static_cast<int>(from.within(
        from.number<int32_t>(), -1, static_cast<int64_t>(p.inputs.size()), "input in place"));
    port.staged = from.number<uint8_t>() != 0;
    if (port.in_place_of < 0) continue;
    if (p.inputs[static_cast<size_t>(port.in_place_of)].type != port.type)
      throw Damaged("an output in place of an input of another type");
    if (!taken.insert(port.in_place_of).second) throw Damaged("two outputs in place of one input");
  }
}

void read_dispatch(Reader& from, Program& p) {
  const size_t kernels = from.count(29);
  if (kernels == 0) return;
  if (p.granularity == machine::Granularity::kMono)
    throw Damaged("a dispatch of what is no graph of kernels");
  if (p.dataflow) throw Damaged("a dispatch of a dataflow program");
  const auto works = static_cast<int64_t>(p.works.size());
  std::vector<bool> runs(p.works.size(), false), launched(p.works.size(), false);
  for (const auto& list : p.lists)
    for (const ObkTask& task : list) runs[task.work] = true;
  p.dispatch.resize(kernels);
  for (schedule::Dispatched& each : p.dispatch) {
    each.position = static_cast<int>(&each - p.dispatch.data());
    each.kernel = static_cast<int>(from.within(from.number<int32_t>(), 0, works, "kernel"));
    each.lane = static_cast<int>(from.within(from.number<int32_t>(), 0, works, "lane"));
    each.priority = static_cast<int>(from.within(from.number<int32_t>(), -64, 1, "priority"));
    each.early = from.within(from.number<uint8_t>(), 0, 2, "start of the next kernel") != 0;
    each.reason = from.text();
    each.predecessors.resize(from.count(4));
    for (int& before : each.predecessors) {
      before = static_cast<int>(from.within(from.number<int32_t>(), 0, works, "predecessor"));
      if (!launched[before])
        throw Damaged(fmt::format("kernel {} follows kernel {}, which is not launched before it",
                                  each.kernel, before));
    }
    if (launched[each.kernel] || !runs[each.kernel])
      throw Damaged(fmt::format("kernel {} is launched twice, or has no tasks", each.kernel));
    launched[each.kernel] = true;
  }
  if (launched != runs) throw Damaged("a dispatch that leaves kernels out");
}

void read_tables(Reader& from, Program& p, const WeightSection& weights, std::string& verified) {
  p.name = from.text(), p.target = from.text();
  if (const std::string granularity = from.text(); !granularity.empty()) {
    const auto known = machine::parse_granularity(granularity);
    if (!known) throw Damaged("a granularity that does not exist");
    p.granularity = *known;
  }
  p.precision = from.text();
  if (!passes::parse_precision(p.precision)) throw Damaged("a precision that does not exist");
  p.sms =
      static_cast<int>(from.within(from.number<int32_t>(), 1, 1 << 16, "number of virtual SMs"));
  p.waves = static_cast<int>(from.within(from.number<int32_t>(), 0, 1 << 24, "number of waves"));
  p.arena = {from.within(from.number<int64_t>(), 0, int64_t{1} << 44, "arena")};
  p.scratch = {from.within(from.number<int64_t>(), 0, int64_t{1} << 36, "scratch")};
  p.dataflow = from.number<uint8_t>() != 0;
  if (p.dataflow && p.on_gpu() && p.granularity != machine::Granularity::kMono)
    throw Damaged("a dataflow program is one kernel");
  p.smem_copies = {
      from.within(from.number<int64_t>(), 0, int64_t{1} << 20, "scratchpad memory of copies")};
  for (auto* ports : {&p.inputs, &p.outputs}) {
    ports->resize(from.count(17));
    for (Port& port : *ports) port.name = from.text(), port.type = from.type();
  }
  p.weights.resize(from.count(1));
  for (Tensor& weight : p.weights)
    if (from.number<uint8_t>()) weight = weights.view(from);
  for (size_t k = from.count(112); k > 0; --k)
    p.packings.push_back(read_packing(from, p.target, p.weights));
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
    for (auto [list, types] : {std::pair{&custom.inputs, &custom.input_types},
                               std::pair{&custom.outputs, &custom.output_types}}) {
      for (size_t k = from.count(13); k > 0; --k)
        list->push_back(from.number<int32_t>()), types->push_back(from.type());
    }
    p.customs.push_back(std::move(custom));
  }
  p.works.resize(from.count(64));
  for (WorkRecord& work : p.works) {
    work.body = static_cast<int32_t>(
        from.within(from.number<int32_t>(), -1, static_cast<int64_t>(p.bodies.size()), "body"));
    work.custom = static_cast<int32_t>(from.within(
        from.number<int32_t>(), -1, static_cast<int64_t>(p.customs.size()), "custom op"));
    if ((work.body < 0) == (work.custom < 0))
      throw Damaged("a work has neither a body nor an op, or both");
    work.scratch = from.within(from.number<int64_t>(), 0, int64_t{1} << 36, "scratch");
    work.row_scratch = from.within(from.number<int64_t>(), 0, work.scratch + 1, "scratch of a row");
    work.params = from.ints();
    work.label = from.text(), work.floor_nanos = from.number<double>(),
    work.task_nanos = from.number<double>();
    work.operands.resize(from.count(17));
    for (Place& place : work.operands) {
      place = read_place(from, p);
      place.smem_copy =
          from.within(from.number<int64_t>(), -1, p.smem_copies.count + 1, "place of a copy");
    }
    work.gathers.resize(from.count(28));
    for (Gather& gather : work.gathers) {
      gather.from = from.within(from.number<int64_t>(), 0, p.arena.count, "gathered value");
      gather.smem_copy =
          from.within(from.number<int64_t>(), 0, p.smem_copies.count, "place of a copy");
      gather.words =
          from.within(from.number<int64_t>(), 0, (p.smem_copies.count - gather.smem_copy) / 4 + 1,
                      "size of a copy");
      gather.number = static_cast<int32_t>(
          from.within(from.number<int32_t>(), 0, 1 << 20, "number of a given value"));
      if (gather.words * 8 > p.arena.count - gather.from)
        throw Damaged("a gathered value leaves the arena");
    }
    if (work.body >= 0) {
      const codegen::BodyTraits& traits = p.bodies[work.body].traits;
      if (static_cast<int64_t>(work.operands.size()) != traits.operands ||
          static_cast<int64_t>(work.params.size()) != traits.params)
        throw Damaged(fmt::format("a work has {} operands and {} params, its body takes {} and {}",
                                  work.operands.size(), work.params.size(), traits.operands,
                                  traits.params));
    }
    if (work.custom < 0) continue;
    for (const auto* list : {&p.customs[work.custom].inputs, &p.customs[work.custom].outputs})
      for (int operand : *list)
        from.within(operand, -1, static_cast<int64_t>(work.operands.size()), "operand");
  }
  p.lists.resize(from.within(from.number<int64_t>(), p.sms, p.sms + 1, "number of lists"));
  for (auto& list : p.lists) {
    list.resize(from.count(56));
    uint32_t before = 0;
    for (ObkTask& task : list) {
      task = ObkTask{};
      task.work = static_cast<uint32_t>(
          from.within(from.number<uint32_t>(), 0, static_cast<int64_t>(p.works.size()), "work"));
      task.wave =
          static_cast<uint32_t>(from.within(from.number<uint32_t>(), before, p.waves, "wave"));
      before = task.wave;
      for (int64_t* each : {&task.r0, &task.r1, &task.c0, &task.c1, &task.weights})
        *each = from.number<int64_t>();
      for (int32_t* each : {&task.weight_bytes, &task.weight_group}) *each = from.number<int32_t>();
    }
  }
  p.copies.resize(from.count(13));
  for (Program::Copy& copy : p.copies) {
    copy.output = static_cast<int>(
        from.within(from.number<int32_t>(), 0, static_cast<int64_t>(p.outputs.size()), "output"));
    copy.from = read_place(from, p);
  }
  if (!p.on_gpu() && !p.objects.empty() && p.objects.size() != p.bodies.size())
    throw Damaged("machine code for another number of bodies");
  verified = from.text();
  if (!from.at_end()) read_dispatch(from, p);
  if (!from.at_end()) read_in_place(from, p);
  if (!from.at_end()) throw Damaged("bytes after the last table");
}

void read_code(Reader bodies, Reader objects, Program& p) {
  p.bodies.resize(bodies.count(88));
  for (codegen::BodyText& body : p.bodies) {
    body.label = bodies.text(), body.text = bodies.text();
    codegen::visit_numbers(body.traits,
                           [&](const char* name, auto& number, int64_t least, int64_t most) {
                             number = static_cast<std::remove_reference_t<decltype(number)>>(
                                 bodies.within(bodies.number<int64_t>(), least, most + 1, name));
                           });
    if (const std::string wrong = codegen::disagreement(body.traits); !wrong.empty())
      throw Damaged(wrong);
    body.hash = codegen::identity(body.text, body.traits);
  }
  p.objects_need = objects.text();
  p.objects.resize(objects.count(8));
  for (std::string& object : p.objects) object = objects.text();
}

}  // namespace

Result<graph::Graph> Compiled::graph() const {
  graph::Weights weights = graph_weights;
  for (const auto& [hash, index] : graph_packings) {
    const Packing& packing = program->packings[index];
    Tensor source = unpack(*tiles_of(program->target), packing.recipe, packing.type,
                           program->weights[packing.weight]);
    if (hash_bytes(source.data(), source.bytes()) != hash)
      return Error{Code::kBadModel, "runtime", "a packed weight of the compiled file is damaged",
                   "", "compile it again from its model"};
    weights[hash] = std::move(source);
  }
  return graph::parse(graph_text, weights);
}

Result<Compiled> parse_obk(const void* data, size_t size, std::shared_ptr<const void> owner,
                           const std::string& name, bool check_weights) {
  const std::string_view file(static_cast<const char*>(data), size);
  const auto bad = [&](std::string message) {
    return Error{Code::kBadModel, "runtime", fmt::format("'{}' is damaged: {}", name, message), "",
                 "compile it again from its model"};
  };
  if (size < kFirst || memcmp(file.data(), kMagic, sizeof kMagic) != 0)
    return bad(size < kFirst ? "it ends early" : "it is no compiled file");
  Reader header(file.substr(sizeof kMagic, kHeaderBytes - sizeof kMagic));
  const uint32_t version = header.number<uint32_t>();
  if (version != kVersion)
    return Error{Code::kBadModel, "runtime",
                 fmt::format("'{}' has format version {}, but this program reads {}", name, version,
                             kVersion),
                 "", "compile it again from its model"};
  const uint64_t claimed = header.number<uint64_t>();
  const uint32_t sections = header.number<uint32_t>();
  if (claimed != size)
    return bad(fmt::format("it says that it has {} bytes, but it has {}", claimed, size));
  if (sections != kSections) return bad(fmt::format("it says that it has {} sections", sections));
  const Hash own = hash_bytes(file.data(), kDirectory);
  Reader stored(file.substr(kDirectory, 16));
  if (stored.number<uint64_t>() != own.high || stored.number<uint64_t>() != own.low)
    return bad("the checksum of its header is wrong");
  std::array<std::string_view, kSections> parts;
  std::array<Hash, kSections> hashes;
  Reader directory(file.substr(kHeaderBytes, kSections * kEntryBytes));
  for (uint32_t kind = 0; kind < kSections; ++kind) {
    const uint32_t stored_kind = directory.number<uint32_t>();
    directory.number<uint32_t>();
    const uint64_t offset = directory.number<uint64_t>(), bytes = directory.number<uint64_t>();
    Hash hash;
    hash.high = directory.number<uint64_t>(), hash.low = directory.number<uint64_t>();
    if (stored_kind != kind || offset > size || bytes > size - offset || offset % 64 != 0)
      return bad(fmt::format("section {} lies outside of it", kind));
    parts[kind] = file.substr(offset, bytes);
    hashes[kind] = hash;
    if (kind != kWeights && hash_bytes(parts[kind].data(), bytes) != hash)
      return bad(fmt::format("the checksum of section {} is wrong", kind));
  }
  try {
    Compiled compiled;
    compiled.program = std::make_shared<Program>();
    read_code(Reader(parts[kBodies]), Reader(parts[kObjects]), *compiled.program);
    Reader tables(parts[kTables]);
    WeightSection weights{parts[kWeights], std::move(owner), {}};
    weights.read(tables);
    if (weights.hash() != hashes[kWeights]) return bad("the checksum of its weights is wrong");
    if (check_weights || static_cast<int64_t>(parts[kWeights].size()) <= kEagerWeights)
      for (size_t k = 0; k < weights.stored.size(); ++k)
        if (hash_bytes(parts[kWeights].data() + weights.stored[k].offset,
                       weights.stored[k].bytes) != weights.stored[k].hash)
          return bad(fmt::format("the checksum of weight {} is wrong", k));
    read_tables(tables, *compiled.program, weights, compiled.verified);
    Reader graph(parts[kGraph]);
    compiled.graph_text = graph.text();
    for (size_t k = graph.count(21); k > 0; --k) {
      Hash hash;
      hash.high = graph.number<uint64_t>(), hash.low = graph.number<uint64_t>();
      if (graph.number<uint8_t>() == 0) {
        compiled.graph_weights[hash] = weights.view(graph);
        continue;
      }
      const int64_t packing =
          graph.within(graph.number<int32_t>(), 0,
                       static_cast<int64_t>(compiled.program->packings.size()), "packing");
      const Packing& source = compiled.program->packings[packing];
      // What is not all of its source would be unpacked to more memory than the file has bytes.
      if (source.recipe.kind == PackRecipe::Kind::kProduct &&
          source.recipe.n * source.recipe.k * source.recipe.groups != source.type.count())
        throw Damaged("a packed weight is not all of its source");
      compiled.graph_packings[hash] = static_cast<int>(packing);
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
