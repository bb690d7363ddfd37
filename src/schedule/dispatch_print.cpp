// A dispatch as text and as JSON.
#include "schedule/dispatch.h"

namespace obelisk::schedule {
namespace {

std::string demand_text(const Demand& demand) {
  return fmt::format("{} blocks of {} threads, {} registers, {} bytes shared, {:.1f} us",
                     demand.blocks, demand.threads, demand.registers, demand.shared_bytes,
                     demand.nanos / 1000);
}

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      out += c;
  }
  return out + "\"";
}

}  // namespace

std::string print(const Dispatch& dispatch, const std::vector<Kernel>& kernels) {
  std::string out = fmt::format(
      "{} kernels in {} lanes, dispatch {}, launch order {}: about {:.1f} us, the longest path "
      "{:.1f}\n",
      dispatch.kernels.size(), dispatch.lanes, dispatch.policy, dispatch.launch_order,
      dispatch.predicted_nanos / 1000, dispatch.critical_nanos / 1000);
  if (!dispatch.reason.empty()) out += "chosen: " + dispatch.reason + "\n";
  for (const Dispatched& each : dispatch.kernels)
    out += fmt::format(
        "{} kernel {} {}: lane {}, priority {}, {}; after {}; {}{}\n", each.position, each.kernel,
        kernels[each.kernel].name, each.lane, each.priority,
        demand_text(kernels[each.kernel].demand),
        each.predecessors.empty() ? "nobody" : fmt::format("{}", fmt::join(each.predecessors, " ")),
        each.reason, each.early ? "" : "; those behind it start when its tiles are computed");
  return out;
}

std::string print_json(const Dispatch& dispatch, const std::vector<Kernel>& kernels) {
  std::string out = "[";
  for (const Dispatched& each : dispatch.kernels) {
    const Kernel& of = kernels[each.kernel];
    out += fmt::format(
        "{}\n{{\"kernel\": {}, \"name\": {}, \"position\": {}, \"lane\": {}, \"priority\": {}, "
        "\"class\": \"{}\", "
        "\"demand\": {{\"blocks\": {}, \"threads\": {}, \"registers\": {}, \"shared_bytes\": {}, "
        "\"nanos\": {:.0f}}}, "
        "\"predecessors\": [{}], \"early\": {}, \"reason\": {}}}",
        each.position == 0 ? "" : ",", each.kernel, json_text(of.name), each.position, each.lane,
        each.priority, to_string(of.kind), of.demand.blocks, of.demand.threads, of.demand.registers,
        of.demand.shared_bytes, of.demand.nanos, fmt::join(each.predecessors, ", "), each.early,
        json_text(each.reason));
  }
  return out + "\n]\n";
}

}  // namespace obelisk::schedule
