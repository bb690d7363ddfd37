#include <algorithm>
#include <array>
#include <map>

#include "base/file_writer.h"
#include "base/parallel.h"
#include "runtime/obk_format.h"
#include "runtime/runtime.h"

namespace obelisk::runtime {
namespace {

using namespace obk_format;

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
  void type(const Type& type) {
    number<uint8_t>(static_cast<uint8_t>(type.dtype)), ints(type.shape);
  }
  void place(const Place& place) {
    number<uint8_t>(static_cast<uint8_t>(place.kind)), number(place.index);
  }
  void tensor(const Tensor& tensor) {
    type(tensor.type()), out.append(static_cast<const char*>(tensor.data()), tensor.bytes());
  }
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

/// Weights by content: equal bytes are stored once. Nothing is copied.
class WeightStore {
 public:
  int32_t add(const Tensor& tensor, const Hash& hash) {
    auto [at, fresh] =
        places_.try_emplace({hash, tensor.bytes()}, static_cast<int32_t>(stored.size()));
    if (fresh) {
      stored.push_back({size, tensor.bytes(), hash});
      tensors.push_back(tensor);
      size += (tensor.bytes() + 63) / 64 * 64;
    }
    return at->second;
  }
  Hash hash() const {  // of all of them
    std::string all;
    for (const Stored& one : stored) all += to_string(one.hash);
    return hash_text(all);
  }
  std::vector<Stored> stored;
  std::vector<Tensor> tensors;
  int64_t size = 0;

 private:
  std::map<std::pair<Hash, int64_t>, int32_t> places_;
};

void write_weights(const WeightStore& weights, Writer& to) {
  to.size(weights.stored.size());
  for (const Stored& one : weights.stored)
    to.number(one.offset), to.number(one.bytes), to.number(one.hash.high), to.number(one.hash.low);
}

void write_packing(const Packing& packing, Writer& to) {
  to.number<int32_t>(packing.weight), to.number<uint8_t>(static_cast<uint8_t>(packing.recipe.kind));
  for (const auto number : kRecipeNumbers) to.number(packing.recipe.*number);
  to.type(packing.type);
}

/// Which of the graph's weights need not be stored, since they follow from a packed weight: the
/// packing by the weight's hash.
std::map<Hash, int> given_by_packings(const Program& program, const graph::Weights& of_graph,
                                      const graph::KnownHashes& hashes) {
  std::map<Hash, int> given;
  const kernels::TileLibrary* tiles = tiles_of(program.target);
  CHECK(tiles || program.packings.empty(), "no tiles for '{}'", program.target);
  using Layout = std::tuple<PackRecipe, DType, int64_t>;
  const auto layout_of = [](const Packing& packing) {
    return Layout{packing.recipe, packing.type.dtype, packing.type.count()};
  };
  std::map<Layout, bool> can;
  // One of each layout; long ones, which take memory, one after the other.
  constexpr int64_t kLong = int64_t{1} << 23;
  std::vector<std::pair<const Packing*, bool*>> asked, long_ones;
  for (const Packing& packing : program.packings) {
    const auto [known, fresh] = can.try_emplace(layout_of(packing), false);
    auto& which = packing.type.count() < kLong ? asked : long_ones;
    if (fresh) which.push_back({&packing, &known->second});
  }
  const auto answer = [&](const std::pair<const Packing*, bool*>& one) {
    *one.second = can_unpack(*tiles, one.first->recipe, one.first->type);
  };
  for_each_on_all_cores(asked.size(), [&](size_t k) { answer(asked[k]); });
  for (const auto& one : long_ones) answer(one);
  for (size_t k = 0; k < program.packings.size(); ++k) {
    const Packing& packing = program.packings[k];
    if (!can.at(layout_of(packing))) continue;
    const Tensor& packed = program.weights[packing.weight];
    // else a NaN's payload may have got lost
    const bool exact = packs_bits(*tiles, packing.recipe, packing.type) && !packing.source.empty();
    const Tensor source =
        exact ? packing.source : unpack(*tiles, packing.recipe, packing.type, packed);
    const auto hashed = hashes.find({source.data(), source.bytes()});
    const Hash hash =
        hashed != hashes.end() ? hashed->second : hash_bytes(source.data(), source.bytes());
    const auto wanted = of_graph.find(hash);
    if (wanted != of_graph.end() && wanted->second.type() == packing.type)
      given.try_emplace(hash, static_cast<int>(k));
  }
  return given;
}

void write_tables(const Program& p, WeightStore& weights, Writer& to) {
  to.text(p.name), to.text(p.target), to.text(std::string(to_string(p.granularity))),
      to.text(p.precision);
  to.number<int32_t>(p.sms), to.number<int32_t>(p.waves), to.number(p.arena.count),
      to.number(p.scratch.count);
  to.number<uint8_t>(p.dataflow), to.number(p.smem_copies.count);
  for (const auto* ports : {&p.inputs, &p.outputs}) {
    to.size(ports->size());
    for (const Port& port : *ports) to.text(port.name), to.type(port.type);
  }
  to.size(p.weights.size());
  std::vector<Hash> hashes(p.weights.size());
  for_each_on_all_cores(hashes.size(), [&](size_t k) {
    if (!p.weights[k].empty()) hashes[k] = hash_bytes(p.weights[k].data(), p.weights[k].bytes());
  });
  for (size_t k = 0; k < p.weights.size(); ++k) {
    const Tensor& weight = p.weights[k];
    to.number<uint8_t>(!weight.empty());
    if (!weight.empty()) to.type(weight.type()), to.number(weights.add(weight, hashes[k]));
  }
  to.size(p.packings.size());
  for (const Packing& packing : p.packings) write_packing(packing, to);
  to.size(p.customs.size());
  for (const CustomRecord& custom : p.customs) {
    to.text(ops::to_string(custom.op)), to.text(custom.name);
    to.size(custom.attrs.all().size());
    for (const auto& [name, attr] : custom.attrs.all()) to.text(name), write_attr(to, attr);
    to.size(custom.inputs.size());
    for (size_t k = 0; k < custom.inputs.size(); ++k)
      to.number<int32_t>(custom.inputs[k]), to.type(custom.input_types[k]);
    to.size(custom.outputs.size());
    for (size_t k = 0; k < custom.outputs.size(); ++k)
      to.number<int32_t>(custom.outputs[k]), to.type(custom.output_types[k]);
  }
  to.size(p.works.size());
  for (const WorkRecord& work : p.works) {
    to.number(work.body), to.number(work.custom), to.number(work.scratch),
        to.number(work.row_scratch), to.ints(work.params);
    to.text(work.label), to.number(work.floor_nanos), to.number(work.task_nanos);
    to.size(work.operands.size());
    for (const Place& place : work.operands) to.place(place), to.number(place.smem_copy);
    to.size(work.gathers.size());
    for (const Gather& gather : work.gathers)
      to.number(gather.from), to.number(gather.smem_copy), to.number(gather.words),
          to.number(gather.number);
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

bool has_in_place(const Program& p) {
  return std::any_of(p.outputs.begin(), p.outputs.end(),
                     [](const Port& port) { return port.in_place_of >= 0; });
}

/// Order, edges and priorities of a graph's kernels or a CPU's works; of waves nothing is written,
/// but that there is none where something follows.
void write_dispatch(const Program& p, Writer& to) {
  if (p.dispatch.empty() && !has_in_place(p)) return;
  to.size(p.dispatch.size());
  for (const schedule::Dispatched& each : p.dispatch) {
    to.number<int32_t>(each.kernel), to.number<int32_t>(each.lane),
        to.number<int32_t>(each.priority), to.number<uint8_t>(each.early), to.text(each.reason);
    to.size(each.predecessors.size());
    for (const int before : each.predecessors) to.number<int32_t>(before);
  }
}

/// The last of the tables; of a program without outputs in place of inputs nothing is written.
void write_in_place(const Program& p, Writer& to) {
  if (!has_in_place(p)) return;
  for (const Port& port : p.outputs)
    to.number<int32_t>(port.in_place_of), to.number<uint8_t>(port.staged);
}

void write_body(const codegen::BodyText& body, Writer& to) {
  to.text(body.label), to.text(body.text);
  codegen::visit_numbers(body.traits, [&](const char*, const auto& number, int64_t, int64_t) {
    to.number(static_cast<int64_t>(number));
  });
}

}  // namespace

Hash fingerprint(const Executable& executable) {
  const Program& program = executable.program();
  WeightStore weights;
  Writer to;
  write_tables(program, weights, to);
  write_dispatch(program, to), write_in_place(program, to);
  write_weights(weights, to);
  for (const codegen::BodyText& body : program.bodies) write_body(body, to);
  for (const std::string& object : executable.objects()) to.text(object);
  return hash_text(to.out);
}

Status write_obk(const std::string& path, const Executable& executable, const graph::Graph& graph,
                 const std::string& verified) {
  const Program& program = executable.program();
  WeightStore weights;
  Writer places, tables, text, bodies, objects;
  write_tables(program, weights, tables);
  tables.text(verified);
  write_dispatch(program, tables), write_in_place(program, tables);
  const graph::KnownHashes hashes = graph::hash_weights(graph);
  text.text(graph::print(graph, {.hashes = &hashes}));
  const graph::Weights of_graph = graph::collect_weights(graph, {.hashes = &hashes});
  const std::map<Hash, int> given = given_by_packings(program, of_graph, hashes);
  text.size(of_graph.size());
  for (const auto& [hash, tensor] : of_graph) {
    const auto packing = given.find(hash);
    text.number(hash.high), text.number(hash.low), text.number<uint8_t>(packing != given.end());
    if (packing != given.end())
      text.number<int32_t>(packing->second);
    else
      text.type(tensor.type()), text.number(weights.add(tensor, hash));
  }
  bodies.size(program.bodies.size());
  for (const codegen::BodyText& body : program.bodies) write_body(body, bodies);
  const std::vector<std::string> code = executable.objects();
  objects.text(program.on_gpu() ? program.target
               : code.empty()   ? ""
                                : cpu_features()),
      objects.size(code.size());
  for (const std::string& object : code) objects.text(object);
  write_weights(weights, places);
  const std::array<std::string, kWeights> sections = {
      places.out + tables.out, std::move(text.out), std::move(bodies.out), std::move(objects.out)};

  Writer header, directory;
  size_t offset = (kFirst + 63) / 64 * 64;
  for (uint32_t kind = 0; kind < kSections; ++kind) {
    const Hash hash = kind == kWeights ? weights.hash() : hash_text(sections[kind]);
    const size_t bytes =
        kind == kWeights ? static_cast<size_t>(weights.size) : sections[kind].size();
    directory.number(kind), directory.number<uint32_t>(0);
    directory.size(offset), directory.size(bytes), directory.number(hash.high),
        directory.number(hash.low);
    offset = (offset + bytes + 63) / 64 * 64;
  }
  header.out.append(kMagic, sizeof kMagic);
  header.number(kVersion), header.size(offset), header.number<uint32_t>(kSections),
      header.number<uint32_t>(0);
  header.out += directory.out;
  const Hash hash = hash_text(header.out);
  header.number(hash.high), header.number(hash.low);

  TRY(const auto file, FileWriter::create(path));
  TRY_STATUS(file->write(header.out));
  for (const std::string& section : sections) {
    TRY_STATUS(file->pad_to(64));
    TRY_STATUS(file->write(section));
  }
  for (const Tensor& tensor : weights.tensors) {
    TRY_STATUS(file->pad_to(64));
    TRY_STATUS(file->write(
        {static_cast<const char*>(tensor.data()), static_cast<size_t>(tensor.bytes())}));
  }
  TRY_STATUS(file->pad_to(64));
  CHECK(file->size() == offset, "{} bytes instead of {}", file->size(), offset);
  // Its checksums detect a file that a power cut broke, and its model makes it again: not worth the
  // wait for hundreds of megabytes.
  return file->commit(FileWriter::kSoon);
}

}  // namespace obelisk::runtime
