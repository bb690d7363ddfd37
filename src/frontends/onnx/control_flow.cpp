// Control flow ends here: the branch that is taken is put in place, loops are unrolled.
#include <algorithm>

#include "frontends/onnx/handlers.h"

namespace obelisk::frontends::onnx {
namespace {

const Body* body_of(Site& site, std::string_view name) {
  const auto found = site.bodies.find(name);
  if (found != site.bodies.end()) return found->second;
  site.contradict(fmt::format("it has no graph '{}'", name));
  return nullptr;
}

/// Items of one iteration after the other, stacked along a new axis.
Item stacked(Site& site, const Items& items, int64_t axis, const ValueDef& declared) {
  if (!items.empty()) {
    Items rows;
    for (const Item& item : items) {
      if (!item.is_tensor()) return Item::unknown();
      rows.push_back(site.emit("Unsqueeze", {item, site.vector({axis})}));
    }
    return site.concat(rows, axis);
  }
  // No iteration has given the type, so the model's own words count.
  const auto dtype = to_dtype(declared.type.element);
  Shape shape;
  for (const DimensionDef& dimension : declared.type.shape) {
    if (!dimension.value || *dimension.value < 0) {
      site.refuse(
          fmt::format("it runs zero times, and the shape of '{}' is not declared", declared.name));
      return Item::unknown();
    }
    shape.push_back(*dimension.value);
  }
  if (!dtype || !declared.type.has_shape) {
    site.refuse(
        fmt::format("it runs zero times, and the type of '{}' is not declared", declared.name));
    return Item::unknown();
  }
  shape.insert(shape.begin() + std::min<int64_t>(axis, static_cast<int64_t>(shape.size())), 0);
  if (const Status status = check_extents(shape, declared.name); !status.ok()) {
    site.fail(status.error());
    return Item::unknown();
  }
  return Item::of(Tensor::allocate({*dtype, shape}));
}

/// The one boolean of an item that has to be known.
std::optional<bool> known(Site& site, const Item& item, std::string_view what) {
  if (item.is_constant() && item.constant.count() == 1) return item.constant.get_int(0) != 0;
  if (item.kind != Item::Kind::kUnknown)
    site.refuse(fmt::format("{} depends on data", what),
                "make it a constant, or bind the value of the model's input that it comes from");
  return std::nullopt;
}

std::optional<Items> run(Site& site, const Body& body, Items inputs, const std::string& prefix) {
  auto outputs = site.importer.run_body(body, site.scope, std::move(inputs), prefix);
  if (outputs.ok()) return *std::move(outputs);
  site.fail(std::move(outputs.error()));
  return std::nullopt;
}

void give_up(Site& site) { site.outputs.assign(site.node.outputs.size(), Item::unknown()); }

}  // namespace

void import_if(Site& site) {
  const std::optional<bool> condition = known(site, site.in(0), "the condition");
  if (!condition) return;
  const Body* body = body_of(site, *condition ? "then_branch" : "else_branch");
  if (!body) return;
  if (auto outputs = run(site, *body, {}, site.name + "/")) site.outputs = *std::move(outputs);
}

/// Loop(M, cond, v...) with body(iteration, cond, v...) → cond, v..., scans...
void import_loop(Site& site) {
  const Body* body = body_of(site, "body");
  if (!body) return;
  int64_t most = INT64_MAX;
  if (site.has(0)) {
    const std::vector<int64_t> trips = site.ints(0, "the trip count");
    if (!site.ok()) return;
    if (trips.size() != 1) return site.contradict("the trip count is not a scalar");
    most = trips[0];
  }
  const size_t carried = site.inputs.size() < 2 ? 0 : site.inputs.size() - 2;
  if (body->inputs.size() != carried + 2 || body->outputs.size() < carried + 1)
    return site.contradict(
        fmt::format("it carries {} values, but its body takes {} inputs and gives {} outputs",
                    carried, body->inputs.size(), body->outputs.size()));
  Items values(site.inputs.begin() + std::min<size_t>(2, site.inputs.size()), site.inputs.end());
  Item condition = site.has(1) ? site.in(1) : site.scalar(DType::b1, 1);
  std::vector<Items> scans(body->outputs.size() - carried - 1);
  for (int64_t trip = 0; trip < most; ++trip) {
    const std::optional<bool> goes_on = known(site, condition, "whether the loop goes on");
    if (!goes_on) return give_up(site);
    if (!*goes_on) break;
    if (trip == site.importer.options().max_iterations)
      return site.refuse(
          fmt::format("it runs more than {} times", site.importer.options().max_iterations),
          "loops are unrolled when compiling");
    Items inputs{Item::of(tensor_of({trip}).reshaped({})), condition};
    inputs.insert(inputs.end(), values.begin(), values.end());
    auto outputs = run(site, *body, std::move(inputs), fmt::format("{}[{}]/", site.name, trip));
    if (!outputs) return;
    condition = (*outputs)[0];
    values.assign(outputs->begin() + 1, outputs->begin() + 1 + carried);
    for (size_t scan = 0; scan < scans.size(); ++scan)
      scans[scan].push_back((*outputs)[1 + carried + scan]);
  }
  site.outputs = values;
  for (size_t scan = 0; scan < scans.size(); ++scan) {
    const size_t place = carried + scan;
    site.outputs.push_back(site.wants(static_cast<int>(place))
                               ? stacked(site, scans[scan], 0, body->outputs[1 + place])
                               : Item());
  }
}

namespace {

struct ScanPlan {
  const Body* body;
  int64_t states, scans;  // of the inputs
  std::vector<int64_t> input_axes, input_directions, output_axes, output_directions;
};

/// All iterations over `inputs` (states, then sequences): final states, then stacked outputs.
Items scan(Site& site, const ScanPlan& plan, const Items& inputs, const std::string& prefix) {
  int64_t length = -1;
  std::vector<int64_t> axes;
  for (int64_t at = 0; at < plan.scans; ++at) {
    const Item& item = inputs[plan.states + at];
    if (!item.is_tensor()) {
      site.contradict("it scans over something that is no tensor");
      return {};
    }
    axes.push_back(site.axis(plan.input_axes[at], item.type.rank()));
    if (!site.ok()) return {};
    const int64_t extent = item.type.shape[axes.back()];
    if (length >= 0 && extent != length) {
      site.contradict(fmt::format("its sequences have lengths {} and {}", length, extent));
      return {};
    }
    length = extent;
  }
  if (length > site.importer.options().max_iterations) {
    site.refuse(fmt::format("it runs {} times", length), "loops are unrolled when compiling");
    return {};
  }
  Items states(inputs.begin(), inputs.begin() + plan.states);
  std::vector<Items> rows(plan.body->outputs.size() - plan.states);
  for (int64_t trip = 0; trip < length; ++trip) {
    Items arguments = states;
    for (int64_t at = 0; at < plan.scans; ++at) {
      const int64_t place = plan.input_directions[at] ? length - 1 - trip : trip;
      arguments.push_back(
          site.emit("Gather", {inputs[plan.states + at], Item::of(tensor_of({place}).reshaped({}))},
                    ops::Attrs().set("axis", axes[at])));
    }
    const auto outputs =
        run(site, *plan.body, std::move(arguments), fmt::format("{}[{}]/", prefix, trip));
    if (!outputs) return {};
    states.assign(outputs->begin(), outputs->begin() + plan.states);
    for (size_t row = 0; row < rows.size(); ++row) {
      Items& list = rows[row];
      list.insert(plan.output_directions[row] ? list.begin() : list.end(),
                  (*outputs)[plan.states + row]);
    }
  }
  Items results = states;
  for (size_t row = 0; row < rows.size(); ++row) {
    const int64_t rank =
        rows[row].empty() || !rows[row][0].is_tensor() ? 0 : rows[row][0].type.rank();
    const int64_t axis =
        plan.output_axes[row] == 0 ? 0 : site.axis(plan.output_axes[row], rank + 1);
    results.push_back(stacked(site, rows[row], axis, plan.body->outputs[plan.states + row]));
  }
  return results;
}

}  // namespace

void import_scan(Site& site) {
  ScanPlan plan;
  plan.body = body_of(site, "body");
  if (!plan.body) return;
  const bool batched =
      site.opset < 9;  // version 8: lengths first, and a batch in front of every value
  Items inputs(site.inputs.begin() + (batched && !site.inputs.empty()), site.inputs.end());
  plan.scans = site.attrs.get_int("num_scan_inputs", 0);
  const auto given = static_cast<int64_t>(inputs.size());
  plan.states = given - std::clamp<int64_t>(plan.scans, 0, given);
  const auto outs = static_cast<int64_t>(plan.body->outputs.size()) - plan.states;
  if (plan.scans <= 0 || plan.scans > given || outs < 0 ||
      plan.body->inputs.size() != inputs.size())
    return site.contradict(
        fmt::format("it scans {} of {} inputs, but its body takes {} and gives {}", plan.scans,
                    inputs.size(), plan.body->inputs.size(), plan.body->outputs.size()));
  const auto list = [&](const char* name, int64_t size) {
    std::vector<int64_t> values = site.attrs.get_ints(name, std::vector<int64_t>(size, 0));
    if (static_cast<int64_t>(values.size()) != size)
      site.contradict(fmt::format("'{}' has {} entries, not {}", name, values.size(), size));
    return values;
  };
  plan.input_axes = list("scan_input_axes", plan.scans);
  plan.input_directions = list(batched ? "directions" : "scan_input_directions", plan.scans);
  plan.output_axes = list("scan_output_axes", outs);
  plan.output_directions = list("scan_output_directions", outs);
  if (!site.ok()) return;
  if (!batched) {
    site.outputs = scan(site, plan, inputs, site.name);
    return;
  }
  if (site.has(0)) return site.refuse("its sequences have lengths of their own");
  if (!inputs[0].is_tensor() || inputs[0].type.rank() == 0)
    return site.contradict("it has no batch");
  const int64_t batch = inputs[0].type.shape[0];
  if (batch == 0 || batch > site.importer.options().max_iterations)
    return site.refuse(fmt::format("its batch is {}", batch));
  std::vector<Items> parts(plan.body->outputs.size());
  for (int64_t row = 0; row < batch && site.ok(); ++row) {
    Items one;
    for (const Item& input : inputs)
      one.push_back(site.emit("Gather", {input, Item::of(tensor_of({row}).reshaped({}))},
                              ops::Attrs().set("axis", 0)));
    const Items results = scan(site, plan, one, fmt::format("{}/{}", site.name, row));
    for (size_t at = 0; at < results.size(); ++at) parts[at].push_back(results[at]);
  }
  if (!site.ok()) return;
  for (size_t at = 0; at < parts.size(); ++at)
    site.outputs.push_back(stacked(site, parts[at], 0, plan.body->outputs[at]));
}

}  // namespace obelisk::frontends::onnx
