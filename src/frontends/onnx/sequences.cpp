// Sequences and optionals: lists of values that exist only while importing. Positions have to be
// known.
#include "frontends/onnx/handlers.h"

namespace obelisk::frontends::onnx {
namespace {

const std::vector<Item>* list_of(Site& site, int input) {
  if (site.in(input).is_sequence()) return site.in(input).list.get();
  site.contradict(fmt::format("input {} is not a sequence", input));
  return nullptr;
}

/// Elements of a list are no lists: nested by a loop they would be deeper than the stack.
bool is_flat(Site& site, const Items& elements) {
  for (const Item& element : elements) {
    if (!element.list) continue;
    site.contradict("an element of the sequence is no tensor");
    return false;
  }
  return true;
}

/// A position in a list of `size`, from the front; the end when not given.
std::optional<int64_t> position(Site& site, int input, int64_t size, int64_t most) {
  if (!site.has(input)) return most;
  const std::vector<int64_t> values = site.ints(input, "the position");
  if (!site.ok()) return std::nullopt;
  if (values.size() == 1 && values[0] >= -size && values[0] <= most)
    return values[0] < 0 ? values[0] + size : values[0];
  site.contradict(
      fmt::format("position {} in a sequence of {}", values.empty() ? 0 : values[0], size));
  return std::nullopt;
}

}  // namespace

void import_sequence_empty(Site& site) { site.finish(Item::sequence({})); }

void import_sequence_construct(Site& site) {
  if (is_flat(site, site.inputs)) site.finish(Item::sequence(site.inputs));
}

void import_sequence_at(Site& site) {
  const auto* list = list_of(site, 0);
  if (!list) return;
  const auto size = static_cast<int64_t>(list->size());
  if (const auto at = position(site, 1, size, size - 1); at && size > 0) site.finish((*list)[*at]);
}

void import_sequence_insert(Site& site) {
  const auto* list = list_of(site, 0);
  if (!list) return;
  const auto size = static_cast<int64_t>(list->size());
  const auto at = position(site, 2, size, size);
  if (!at || !is_flat(site, {site.in(1)})) return;
  if (size >= site.importer.options().max_iterations)
    return site.refuse("the sequence grows too long");
  Items items = *list;
  items.insert(items.begin() + *at, site.in(1));
  site.finish(Item::sequence(std::move(items)));
}

void import_sequence_erase(Site& site) {
  const auto* list = list_of(site, 0);
  if (!list) return;
  const auto size = static_cast<int64_t>(list->size());
  if (size == 0) return site.contradict("the sequence is empty");
  const auto at = position(site, 1, size, size - 1);
  if (!at) return;
  Items items = *list;
  items.erase(items.begin() + *at);
  site.finish(Item::sequence(std::move(items)));
}

void import_sequence_length(Site& site) {
  if (const auto* list = list_of(site, 0))
    site.finish(Item::of(tensor_of({static_cast<int64_t>(list->size())}).reshaped({})));
}

/// Equal parts of one, of a given size, or of given sizes.
void import_split_to_sequence(Site& site) {
  if (!site.in(0).is_tensor()) return site.contradict("it takes a tensor");
  const int64_t axis = site.axis(site.attrs.get_int("axis", 0), site.rank(0));
  if (!site.ok()) return;
  const int64_t extent = site.shape(0)[axis];
  std::vector<int64_t> sizes;
  const bool single = !site.has(1);
  if (single || site.rank(1) == 0) {
    const std::vector<int64_t> given = single ? std::vector<int64_t>{1} : site.ints(1, "the split");
    if (!site.ok()) return;
    if (given.empty() || given[0] <= 0) return site.contradict("the split is not positive");
    if (extent / given[0] > site.importer.options().max_iterations)
      return site.refuse("the sequence grows too long");
    for (int64_t at = 0; at < extent; at += given[0])
      sizes.push_back(std::min(given[0], extent - at));
  } else {
    sizes = site.ints(1, "the split");
    if (!site.ok()) return;
  }
  Items parts = sizes.size() == 1 && sizes[0] == extent
                    ? Items{site.in(0)}
                    : site.emit("Split", {site.in(0), site.vector(sizes)},
                                ops::Attrs().set("axis", axis), static_cast<int>(sizes.size()));
  if (single && site.attrs.get_int("keepdims", 1) == 0)
    for (Item& part : parts) part = site.emit("Squeeze", {part, site.vector({axis})});
  site.finish(Item::sequence(std::move(parts)));
}

void import_concat_from_sequence(Site& site) {
  const auto* list = list_of(site, 0);
  if (!list) return;
  if (list->empty()) return site.contradict("the sequence is empty");
  const int64_t axis = site.attrs.get_int("axis", 0);
  Items items = *list;
  if (site.attrs.get_int("new_axis", 0) != 0)
    for (Item& item : items) item = site.emit("Unsqueeze", {item, site.vector({axis})});
  site.finish(site.concat(items, axis));
}

/// The body runs once for each element of the first sequence.
void import_sequence_map(Site& site) {
  const auto* list = list_of(site, 0);
  const auto found = site.bodies.find("body");
  if (!list) return;
  if (found == site.bodies.end()) return site.contradict("it has no graph 'body'");
  std::vector<Items> results(found->second->outputs.size());
  for (size_t at = 0; at < list->size(); ++at) {
    Items inputs;
    for (const Item& input : site.inputs) {
      if (input.is_sequence() && input.list->size() != list->size())
        return site.contradict("its sequences have different lengths");
      inputs.push_back(input.is_sequence() ? (*input.list)[at] : input);
    }
    auto outputs = site.importer.run_body(*found->second, site.scope, std::move(inputs),
                                          fmt::format("{}[{}]/", site.name, at));
    if (!outputs.ok()) return site.fail(std::move(outputs.error()));
    for (size_t result = 0; result < results.size(); ++result)
      results[result].push_back((*outputs)[result]);
  }
  for (Items& items : results) {
    if (!is_flat(site, items)) return;
    site.outputs.push_back(Item::sequence(std::move(items)));
  }
}

void import_optional(Site& site) {
  if (site.in(0).kind == Item::Kind::kOptional) return site.contradict("it takes an optional");
  site.finish(Item::optional(site.has(0) ? Items{site.in(0)} : Items{}));
}

void import_optional_has_element(Site& site) {
  const Item& item = site.in(0);
  const bool has = item.kind == Item::Kind::kOptional ? !item.list->empty() : site.has(0);
  site.finish(site.scalar(DType::b1, has));
}

void import_optional_get_element(Site& site) {
  const Item& item = site.in(0);
  if (item.kind != Item::Kind::kOptional) return site.finish(item);
  if (item.list->empty()) return site.contradict("the optional holds nothing");
  site.finish((*item.list)[0]);
}

}  // namespace obelisk::frontends::onnx
