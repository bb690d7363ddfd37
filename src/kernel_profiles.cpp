#include "kernel_profiles.h"

#include "runtime/obk.h"

namespace obelisk::compiler {
namespace {

constexpr const char* kSchema = R"(
CREATE TABLE IF NOT EXISTS profiles (key TEXT PRIMARY KEY, gpu TEXT, driver INTEGER, version TEXT);
CREATE TABLE IF NOT EXISTS kernels (
  key TEXT, kernel INTEGER, name TEXT, class TEXT, nanos REAL, ctas INTEGER, threads INTEGER,
  registers INTEGER, shared_bytes INTEGER, PRIMARY KEY (key, kernel));
CREATE TABLE IF NOT EXISTS dispatches (key TEXT, dispatch TEXT, us REAL, PRIMARY KEY (key, dispatch));
CREATE TABLE IF NOT EXISTS searches (key TEXT PRIMARY KEY, seconds REAL);
CREATE TABLE IF NOT EXISTS places (
  key TEXT, position INTEGER, kernel INTEGER, lane INTEGER, PRIMARY KEY (key, position));
)";

}  // namespace

KernelProfiles::KernelProfiles(const std::string& folder)
    : database_(folder, "kernels.sqlite", kSchema, "profiles of kernels") {}

std::optional<KernelProfile> KernelProfiles::find(const Hash& key) const {
  KernelProfile found;
  Statement kernels(database_, "SELECT kernel, nanos FROM kernels WHERE key = ?");
  kernels.bind(1, to_string(key));
  while (kernels.row()) found.nanos[static_cast<int>(kernels.integer(0))] = kernels.real(1);
  Statement dispatches(database_, "SELECT dispatch, us FROM dispatches WHERE key = ?");
  dispatches.bind(1, to_string(key));
  while (dispatches.row()) found.us[dispatches.text(0)] = dispatches.real(1);
  if (found.us.empty()) return std::nullopt;
  Statement searches(database_, "SELECT seconds FROM searches WHERE key = ?");
  searches.bind(1, to_string(key));
  if (searches.row()) found.found.seconds = searches.real(0);
  Statement places(database_, "SELECT kernel, lane FROM places WHERE key = ? ORDER BY position");
  places.bind(1, to_string(key));
  while (places.row()) {
    found.found.order.push_back(static_cast<int>(places.integer(0)));
    found.found.lane.push_back(static_cast<int>(places.integer(1)));
  }
  return found;
}

void KernelProfiles::keep(const Hash& key, const runtime::DeviceReport& device,
                          const std::vector<schedule::Kernel>& kernels,
                          const KernelProfile& profile) const {
  if (!database_.open()) return;
  const std::string name = to_string(key);
  Statement(database_, "BEGIN").run();
  Statement(database_, "INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?)")
      .bind(1, name)
      .bind(2, device.gpu)
      .bind(3, int64_t{device.driver_version})
      .bind(4, std::string(OBELISK_VERSION))
      .run();
  for (const auto& [kernel, nanos] : profile.nanos) {
    const schedule::Kernel& of = kernels[static_cast<size_t>(kernel)];
    Statement(database_, "INSERT OR REPLACE INTO kernels VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")
        .bind(1, name)
        .bind(2, int64_t{kernel})
        .bind(3, of.name)
        .bind(4, std::string(schedule::to_string(of.kind)))
        .bind(5, nanos)
        .bind(6, of.demand.blocks)
        .bind(7, int64_t{of.demand.threads})
        .bind(8, int64_t{of.demand.registers})
        .bind(9, of.demand.shared_bytes)
        .run();
  }
  for (const auto& [dispatch, us] : profile.us)
    Statement(database_, "INSERT OR REPLACE INTO dispatches VALUES (?, ?, ?)")
        .bind(1, name)
        .bind(2, dispatch)
        .bind(3, us)
        .run();
  if (profile.found.seconds > 0) {
    Statement(database_, "INSERT OR REPLACE INTO searches VALUES (?, ?)")
        .bind(1, name)
        .bind(2, profile.found.seconds)
        .run();
    Statement(database_, "DELETE FROM places WHERE key = ?").bind(1, name).run();
  }
  for (size_t k = 0; k < profile.found.order.size(); ++k)
    Statement(database_, "INSERT INTO places VALUES (?, ?, ?, ?)")
        .bind(1, name)
        .bind(2, static_cast<int64_t>(k))
        .bind(3, int64_t{profile.found.order[k]})
        .bind(4, int64_t{profile.found.lane[k]})
        .run();
  Statement(database_, "COMMIT").run();
}

Hash profile_key(const runtime::Executable& executable, const runtime::Program* in_waves,
                 const schedule::DispatchOptions& options) {
  const runtime::DeviceReport& device = *executable.device();
  const schedule::DispatchRules& rules = options.rules;
  std::string left_out;
  if (!rules.classes) left_out += " classes";
  if (!rules.demand) left_out += " demand";
  if (!rules.priorities) left_out += " priorities";
  if (!rules.early) left_out += " early";
  constexpr const char* kTried = "without priorities";  // what `auto` tries beside the policies
  const std::string table =
      in_waves ? fmt::format("{} waves {}", in_waves->waves, in_waves->arena.count) : "";
  return hash_text(fmt::format("{} {} {} {} {} {} {} {}{}",
                               to_string(runtime::fingerprint(executable)), table, device.gpu,
                               device.driver_version, OBELISK_VERSION, kTried, options.launch_order,
                               options.streams, left_out));
}

}  // namespace obelisk::compiler
