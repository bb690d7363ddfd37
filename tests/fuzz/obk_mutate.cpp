// Compiled files, as runtime/obk_read.cpp reads them: a walk over the sections notes where every
// number, table and text lies.
#include <array>
#include <cstring>
#include <optional>

#include "codegen/codegen.h"
#include "fuzz/mutate.h"
#include "runtime/obk_format.h"
#include "runtime/runtime.h"

namespace obelisk::fuzz {
namespace {

using namespace runtime::obk_format;

template <typename T>
T load(std::string_view bytes, size_t at) {
  T value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
template <typename T>
void store(std::string& bytes, size_t at, T value) {
  if (at + sizeof value <= bytes.size()) std::memcpy(bytes.data() + at, &value, sizeof value);
}
void store_hash(std::string& bytes, size_t at, const Hash& hash) {
  store(bytes, at, hash.high), store(bytes, at + 8, hash.low);
}
Hash load_hash(std::string_view bytes, size_t at) {
  return {load<uint64_t>(bytes, at), load<uint64_t>(bytes, at + 8)};
}

struct Number {
  uint32_t section;
  size_t at;
  int width;  // bytes
};
struct Text {
  uint32_t section;
  size_t at;  // of its length, the bytes follow
};
struct Table {
  uint32_t section;
  size_t count_at;
  std::vector<size_t> begins;  // of the entries, and the end of the last
};
/// A work and what its body's traits must say of it.
struct Work {
  int32_t body;
  Table operands, params;
};

/// Where everything lies. A walk that runs out of bytes keeps what it has seen.
class Walk {
 public:
  explicit Walk(const std::array<std::string, kSections>& sections) : sections_(sections) {
    for (const auto walk : {&Walk::tables, &Walk::graph, &Walk::bodies, &Walk::objects}) try {
        (this->*walk)();
      } catch (const Ended&) {
      }
  }
  std::vector<Number> numbers;
  std::vector<Text> texts;
  std::vector<Table> lists;  // tables of all kinds
  std::vector<Work> works;
  std::vector<size_t> traits;  // by body: where those begin, with operands and params
  std::optional<size_t> sms_at;
  std::optional<Table> task_lists;

 private:
  struct Ended {};
  void need(size_t count) const {
    if (count > sections_[section_].size() - at_) throw Ended{};
  }
  template <typename T>
  T number() {
    need(sizeof(T));
    numbers.push_back({section_, at_, sizeof(T)});
    const T value = load<T>(sections_[section_], at_);
    at_ += sizeof(T);
    return value;
  }
  void skip(uint64_t count) { need(count), at_ += count; }
  void text() {
    need(8);
    texts.push_back({section_, at_});
    const auto length = load<uint64_t>(sections_[section_], at_);
    at_ += 8, skip(length);
  }
  template <typename Entry>
  Table table(Entry&& entry) {
    need(8);
    Table found{section_, at_, {}};
    auto count = load<uint64_t>(sections_[section_], at_);
    at_ += 8;
    for (; count > 0; --count) found.begins.push_back(at_), entry(), need(0);
    found.begins.push_back(at_);
    lists.push_back(found);
    return found;
  }
  Table ints() {
    return table([&] { number<int64_t>(); });
  }
  Type type() {
    Type type;
    const auto dtype = number<uint8_t>();
    type.dtype = static_cast<DType>(dtype < kDTypes ? dtype : 0);
    const Table shape = ints();
    for (size_t k = 0; k + 1 < shape.begins.size(); ++k)
      type.shape.push_back(load<int64_t>(sections_[section_], shape.begins[k]));
    return type;
  }
  void place() { number<uint8_t>(), number<int64_t>(); }
  void attr() {
    switch (number<uint8_t>()) {
      case 0:
        number<int64_t>();
        return;
      case 1:
        number<double>();
        return;
      case 2:
        return text();
      case 3:
        ints();
        return;
      case 4:
        table([&] { number<double>(); });
        return;
      default: {
        const Type held = type();
        const auto count = checked_element_count(held.shape);
        if (!count || *count > (int64_t{1} << 40)) throw Ended{};
        skip(static_cast<uint64_t>(held.bytes()));
      }
    }
  }

  void tables() {
    section_ = kTables, at_ = 0;
    table([&] { number<int64_t>(), number<int64_t>(), skip(16); });  // places of weights
    for (int k = 0; k < 4; ++k) text();  // name, target, granularity, precision
    sms_at = at_;
    number<int32_t>(), number<int32_t>(), number<int64_t>(), number<int64_t>();
    number<uint8_t>(), number<int64_t>();
    for (int k = 0; k < 2; ++k) table([&] { text(), type(); });
    table([&] {
      if (number<uint8_t>()) type(), number<int32_t>();
    });
    table([&] {  // packings
      number<int32_t>(), number<uint8_t>();
      for (size_t k = 0; k < std::size(kRecipeNumbers); ++k) number<int64_t>();
      type();
    });
    table([&] {  // ops with a block of their own
      text(), text();
      table([&] { text(), attr(); });
      for (int k = 0; k < 2; ++k) table([&] { number<int32_t>(), type(); });
    });
    table([&] {
      Work work;
      work.body = number<int32_t>();
      number<int32_t>(), number<int64_t>(), number<int64_t>();
      work.params = ints();
      text(), number<double>(), number<double>();
      work.operands = table([&] { place(), number<int64_t>(); });
      table([&] { number<int64_t>(), number<int64_t>(), number<int64_t>(), number<int32_t>(); });
      works.push_back(work);
    });
    task_lists = table([&] {
      table([&] {
        number<uint32_t>(), number<uint32_t>();
        for (int k = 0; k < 5; ++k) number<int64_t>();
        number<int32_t>(), number<int32_t>();
      });
    });
    table([&] { number<int32_t>(), place(); });
    text();
    if (at_ == sections_[kTables].size()) return;
    table([&] {  // the dispatch
      number<int32_t>(), number<int32_t>(), number<int32_t>(), text();
      table([&] { number<int32_t>(); });
    });
  }
  void graph() {
    section_ = kGraph, at_ = 0;
    text();
    table([&] {
      skip(16);
      if (number<uint8_t>() == 0) type();
      number<int32_t>();
    });
  }
  void bodies() {
    section_ = kBodies, at_ = 0;
    table([&] {
      text(), text();
      traits.push_back(at_);
      codegen::BodyTraits each;
      codegen::visit_numbers(each, [&](const char*, auto& one, int64_t, int64_t) {
        const int64_t value = number<int64_t>();
        using Kind = std::remove_reference_t<decltype(one)>;
        if constexpr (std::is_same_v<Kind, bool>) one = value != 0;
      });
    });
  }
  void objects() {
    section_ = kObjects, at_ = 0;
    text();
    table([&] { text(); });
  }

  const std::array<std::string, kSections>& sections_;
  uint32_t section_ = 0;
  size_t at_ = 0;
};

using Sections = std::array<std::string, kSections>;

std::optional<Sections> sections_of(std::string_view file) {
  if (file.size() < kFirst || std::memcmp(file.data(), kMagic, sizeof kMagic) != 0) return {};
  Sections out;
  for (size_t kind = 0; kind < kSections; ++kind) {
    const size_t entry = kHeaderBytes + kind * kEntryBytes;
    const auto offset = load<uint64_t>(file, entry + 8), bytes = load<uint64_t>(file, entry + 16);
    if (offset > file.size() || bytes > file.size() - offset) return {};
    out[kind] = file.substr(offset, bytes);
  }
  return out;
}

/// Weights' hashes follow their bytes, and so do the graph's names for them.
void name_weights_anew(Sections& s) {
  const auto count = load<uint64_t>(s[kTables], 0);
  if (count > s[kTables].size() / 32) return;
  for (uint64_t k = 0; k < count; ++k) {
    const size_t at = 8 + k * 32;
    const auto offset = load<uint64_t>(s[kTables], at), bytes = load<uint64_t>(s[kTables], at + 8);
    if (offset > s[kWeights].size() || bytes > s[kWeights].size() - offset) continue;
    const Hash before = load_hash(s[kTables], at + 16),
               now = hash_bytes(s[kWeights].data() + offset, bytes);
    if (before == now || at + 32 > s[kTables].size()) continue;
    store_hash(s[kTables], at + 16, now);
    std::string key(16, '\0'), name = to_string(before);
    store_hash(key, 0, before);
    for (size_t at = 0; (at = s[kGraph].find(key, at)) != std::string::npos; at += 16)
      store_hash(s[kGraph], at, now);
    for (size_t at = 0; (at = s[kGraph].find(name, at)) != std::string::npos; at += name.size())
      s[kGraph].replace(at, name.size(), to_string(now));
  }
}

std::string file_of(Sections sections) {
  name_weights_anew(sections);
  std::string out(kFirst, '\0');
  std::memcpy(out.data(), kMagic, sizeof kMagic);
  store<uint32_t>(out, 16, kSections);
  for (uint32_t kind = 0; kind < kSections; ++kind) {
    out.resize((out.size() + 63) / 64 * 64);
    const size_t entry = kHeaderBytes + kind * kEntryBytes;
    store(out, entry, kind);
    store<uint64_t>(out, entry + 8, out.size());
    store<uint64_t>(out, entry + 16, sections[kind].size());
    out += sections[kind];
  }
  out.resize((out.size() + 63) / 64 * 64);
  seal_obk(out);
  return out;
}

uint64_t value_of(const Sections& sections, const Number& number) {
  uint64_t value = 0;
  std::memcpy(&value, sections[number.section].data() + number.at, number.width);
  return value;
}

void change_number(Sections& s, const Walk& walk, Dice& dice) {
  if (walk.numbers.empty()) return;
  const Number& number = dice.pick(walk.numbers);
  std::vector<uint64_t> others;
  for (int k = 0; k < 8; ++k) {
    const Number& other = dice.pick(walk.numbers);
    if (other.width == number.width) others.push_back(value_of(s, other));
  }
  uint64_t value = another_number(value_of(s, number), others, dice);
  std::memcpy(s[number.section].data() + number.at, &value, number.width);
}

void add_to_count(Sections& s, const Table& table, int64_t more) {
  store<uint64_t>(s[table.section], table.count_at,
                  load<uint64_t>(s[table.section], table.count_at) + more);
}

/// An entry is left out, told twice, or put in another's place.
void change_table(Sections& s, const Table& table, Dice& dice) {
  const size_t entries = table.begins.size() - 1;
  if (entries == 0) return;
  const size_t k = dice.below(entries), other = dice.below(entries);
  std::string& bytes = s[table.section];
  const auto entry = [&](size_t at) {
    return bytes.substr(table.begins[at], table.begins[at + 1] - table.begins[at]);
  };
  const std::string taken = entry(k);
  switch (dice.below(3)) {
    case 0:
      bytes.erase(table.begins[k], taken.size()), add_to_count(s, table, -1);
      return;
    case 1:
      bytes.insert(table.begins[other], taken), add_to_count(s, table, 1);
      return;
    default:
      bytes.replace(table.begins[other], table.begins[other + 1] - table.begins[other], taken);
  }
}

/// A machine with one list more or less, which says so.
void change_machine(Sections& s, const Walk& walk, Dice& dice) {
  if (!walk.task_lists || !walk.sms_at || walk.task_lists->begins.size() < 2) return;
  change_table(s, *walk.task_lists, dice);
  store<int32_t>(s[kTables], *walk.sms_at,
                 static_cast<int32_t>(load<uint64_t>(s[kTables], walk.task_lists->count_at)));
}

/// All works of a body hand it one operand or parameter more or less, and the body takes them.
void change_signature(Sections& s, const Walk& walk, Dice& dice) {
  if (walk.traits.empty()) return;
  const size_t body = dice.below(walk.traits.size());
  const bool params = dice.once_in(2), more = dice.once_in(2);
  // From the last one on: what lies before keeps its place.
  for (size_t k = walk.works.size(); k-- > 0;) {
    if (walk.works[k].body != static_cast<int32_t>(body)) continue;
    const Table& table = params ? walk.works[k].params : walk.works[k].operands;
    if (table.begins.size() < 2) return;
    const size_t last = table.begins[table.begins.size() - 2], end = table.begins.back();
    std::string& bytes = s[kTables];
    if (more)
      bytes.insert(end, bytes.substr(last, end - last));
    else
      bytes.erase(last, end - last);
    add_to_count(s, table, more ? 1 : -1);
  }
  const size_t at = walk.traits[body] + (params ? 8 : 0);
  store<uint64_t>(s[kBodies], at, load<uint64_t>(s[kBodies], at) + (more ? 1 : -1));
}

void set_text(Sections& s, const Text& text, const std::string& value) {
  std::string& bytes = s[text.section];
  bytes.replace(text.at + 8, load<uint64_t>(bytes, text.at), value);
  store<uint64_t>(bytes, text.at, value.size());
}
std::string text_of(const Sections& s, const Text& text) {
  return s[text.section].substr(text.at + 8, load<uint64_t>(s[text.section], text.at));
}

/// Another text of the file; lines in another order; bytes scrambled.
void change_text(Sections& s, const Text& text, const Walk& walk, Dice& dice,
                 const Scramble& scramble) {
  const std::string value = text_of(s, text);
  std::vector<std::string> lines;
  for (size_t at = 0; at < value.size();) {
    const size_t end = std::min(value.find('\n', at), value.size() - 1) + 1;
    lines.push_back(value.substr(at, end - at)), at = end;
  }
  if (lines.size() > 2 && !dice.once_in(3)) {
    const size_t from = dice.below(lines.size()), to = dice.below(lines.size());
    switch (dice.below(4)) {
      case 0:
        lines.erase(lines.begin() + static_cast<int64_t>(from));
        break;
      case 1:
        lines.insert(lines.begin() + static_cast<int64_t>(to), std::string(lines[from]));
        break;
      case 2:
        std::swap(lines[from], lines[to]);
        break;
      default:
        lines[from] = scramble(lines[from], lines[from].size() + 64);
    }
    std::string joined;
    for (const std::string& line : lines) joined += line;
    return set_text(s, text, joined);
  }
  if (dice.once_in(2)) return set_text(s, text, text_of(s, dice.pick(walk.texts)));
  set_text(s, text, scramble(value, value.size() + 64));
}

}  // namespace

void seal_obk(std::string& file) {
  if (file.size() < kFirst) return;
  const uint64_t size = file.size();
  store(file, 4, kVersion), store(file, 8, size);
  const auto start_of = [&](size_t kind) {
    return load<uint64_t>(file, kHeaderBytes + kind * kEntryBytes + 8);
  };
  // The weights' hashes stand at the beginning of the tables, the hash of those in the directory.
  const uint64_t tables = start_of(kTables), weights = start_of(kWeights);
  if (tables >= kFirst && tables <= size - 8 && weights <= size) {
    const auto count = load<uint64_t>(file, tables);
    std::string all;
    bool inside = count <= (size - tables - 8) / 32;
    for (uint64_t k = 0; inside && k < count; ++k) {
      const size_t at = tables + 8 + k * 32;
      const auto offset = load<uint64_t>(file, at), length = load<uint64_t>(file, at + 8);
      inside = offset <= size - weights && length <= size - weights - offset;
      if (!inside) break;
      const Hash hash = hash_bytes(file.data() + weights + offset, length);
      store_hash(file, at + 16, hash), all += to_string(hash);
    }
    if (inside) store_hash(file, kHeaderBytes + kWeights * kEntryBytes + 24, hash_text(all));
  }
  for (size_t kind = 0; kind < kWeights; ++kind) {
    const size_t entry = kHeaderBytes + kind * kEntryBytes;
    const auto offset = load<uint64_t>(file, entry + 8), length = load<uint64_t>(file, entry + 16);
    if (offset > size || length > size - offset || offset < kFirst) continue;
    store_hash(file, entry + 24, hash_bytes(file.data() + offset, length));
  }
  store_hash(file, kDirectory, hash_bytes(file.data(), kDirectory));
}

std::string mutate_obk(std::string_view bytes, size_t most, Dice& dice, const Scramble& scramble) {
  auto sections = sections_of(bytes);
  if (!sections || dice.once_in(16)) return scramble(std::string(bytes), most);
  Sections& s = *sections;
  const size_t edits = 1 + (dice.once_in(4) ? dice.below(4) : 0);
  for (size_t k = 0; k < edits; ++k) {
    const Walk walk(s);
    switch (dice.below(10)) {
      case 0:
      case 1:
      case 2:
      case 3:
        change_number(s, walk, dice);
        break;
      case 4:
        if (!walk.lists.empty()) change_table(s, dice.pick(walk.lists), dice);
        break;
      case 5:
        change_machine(s, walk, dice);
        break;
      case 6:
        change_signature(s, walk, dice);
        break;
      case 7:
        if (!walk.texts.empty()) change_text(s, dice.pick(walk.texts), walk, dice, scramble);
        break;
      case 8:  // the graph's text, by which `--portable` compiles
        for (const Text& text : walk.texts)
          if (text.section == kGraph) {
            change_text(s, text, walk, dice, scramble);
            break;
          }
        break;
      default:
        if (!s[kWeights].empty())
          s[kWeights][dice.below(s[kWeights].size())] ^= static_cast<char>(1 << dice.below(8));
    }
  }
  std::string out = file_of(s);
  return out.size() <= most ? out : scramble(std::string(bytes), most);
}

}  // namespace obelisk::fuzz
