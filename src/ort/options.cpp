#include "ort/options.h"

#include <charconv>
#include <functional>
#include <map>

#include "compile.h"

namespace obelisk::ort {
namespace {

[[noreturn]] void refuse(const std::string& message, const std::string& hint) {
  throw Failure(FailureKind::kUsage, message, "", hint, message + "; " + hint);
}

template <typename T>
void read(const std::string& name, const std::string& text, T& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  if (error != std::errc() || end != text.data() + text.size())
    refuse("option '" + name + "' is '" + text + "'", "it wants a number");
}

void read(const std::string& name, const std::string& text, bool& to) {
  if (text != "0" && text != "1") refuse("option '" + name + "' is '" + text + "'", "0 or 1");
  to = text == "1";
}

void read(const std::string&, const std::string& text, std::string& to) { to = text; }

}  // namespace

CompileOptions options_of(const std::vector<std::pair<std::string, std::string>>& given) {
  CompileOptions o;
  o.host_tail = false;  // ONNX Runtime runs such nodes itself
  const std::map<std::string, std::function<void(const std::string&, const std::string&)>> known = {
#define OPTION(member) \
  {#member, [&](const std::string& name, const std::string& text) { read(name, text, o.member); }}
    OPTION(target),
    OPTION(precision),
    OPTION(granularity),
    OPTION(dispatch),
    OPTION(search_seconds),
    OPTION(threads),
    OPTION(verify),
    OPTION(verify_seconds),
    OPTION(compiler),
    OPTION(cache),
    OPTION(memory_limit),
    OPTION(watchdog),
    OPTION(batch_invariant),
#undef OPTION
  };
  for (const auto& [name, text] : given) {
    const auto found = known.find(name);
    if (found == known.end()) {
      std::string all;
      for (const auto& [each, read] : known) all += (all.empty() ? "" : ", ") + each;
      refuse("the provider has no option '" + name + "'", "its options: " + all);
    }
    found->second(name, text);
  }
  // A session asks once for a provider and takes no for an answer; later it would only log it.
  const auto must = [](const auto& result) {
    if (!result.ok()) refuse(result.error().message, result.error().hint);
  };
  if (!passes::parse_precision(o.precision))
    refuse("there is no precision '" + o.precision + "'", "keep, fp32, tf32, fp16 or bf16");
  must(compiler::parse_wanted_granularity(o.granularity));
  if (!o.dispatch.empty()) must(schedule::check_options({.policy = o.dispatch}));
  must(compiler::find_machine(o.target, o.virtual_sms, o.threads));
  return o;
}

}  // namespace obelisk::ort
