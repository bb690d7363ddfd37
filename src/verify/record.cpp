// What verifying a program found, kept beside its machine code.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "verify/verify.h"

namespace obelisk::verify {
namespace {

constexpr std::string_view kFirstLine = "obelisk verified 2";

/// The folder and the name of a place.
std::pair<std::string, std::string> parts_of(const std::string& place) {
  const size_t slash = place.rfind('/');
  return {place.substr(0, slash), place.substr(slash + 1)};
}

}  // namespace

std::string place_of_record(const std::string& cache, const Graph& graph,
                            const runtime::Executable& executable, const Options& options) {
  const std::string folder = runtime::cache_folder(cache);
  if (folder.empty()) return "";
  const graph::KnownHashes hashes = graph::hash_weights(graph);
  const runtime::DeviceReport* device = executable.device();
  const std::string all = fmt::format(
      "{}\n{}\n{}\n{}\n{}\n{}\n{}", kFirstLine, OBELISK_VERSION,
      to_string(runtime::fingerprint(executable)), device ? device->gpu : "",
      passes::to_string(options.precision), options.seed, graph::print(graph, {.hashes = &hashes}));
  return folder + "/" + to_string(hash_text(all)) + ".verified";
}

std::optional<Report> recall(const std::string& place, const Options& options) {
  if (place.empty()) return std::nullopt;
  const auto [folder, name] = parts_of(place);
  const auto cache = runtime::open_cache(folder);
  const auto text = cache ? cache->get(name) : std::nullopt;
  if (!text) return std::nullopt;
  std::istringstream lines(*text);
  std::string first, rows;
  double seconds = 0;
  Report report;
  std::getline(lines, first);
  lines >> seconds >> report.max_abs >> report.max_rel >> report.tolerance >> report.rounding;
  lines.ignore(1);
  std::getline(lines, rows);
  if (first != kFirstLine || !lines || rows.empty()) return std::nullopt;
  if (rows != report.rows && seconds < options.seconds) return std::nullopt;
  size_t outputs = 0;
  for (lines >> outputs; lines && report.outputs.size() < outputs;) {
    OfOutput each;
    lines >> each.max_abs >> each.max_rel >> each.tolerance >> each.rounding;
    lines.ignore(1);
    std::getline(lines, each.name);
    report.outputs.push_back(std::move(each));
  }
  if (!lines) return std::nullopt;
  report.rows = rows, report.precision = options.precision, report.before = true;
  return report;
}

void remember(const std::string& place, const Report& report, const Options& options) {
  if (place.empty() || !report.ok || report.rows.empty()) return;
  const double seconds = std::isfinite(options.seconds) ? options.seconds : 1e9;
  std::string text = fmt::format("{}\n{} {} {} {} {}\n{}\n{}\n", kFirstLine, seconds,
                                 report.max_abs, report.max_rel, report.tolerance, report.rounding,
                                 report.rows, report.outputs.size());
  for (const OfOutput& each : report.outputs) {
    std::string line = each.name;
    std::replace(line.begin(), line.end(), '\n', ' ');
    text += fmt::format("{} {} {} {} {}\n", each.max_abs, each.max_rel, each.tolerance,
                        each.rounding, line);
  }
  const auto [folder, name] = parts_of(place);
  if (const auto cache = runtime::open_cache(folder)) (void)cache->put(name, text);
}

}  // namespace obelisk::verify
