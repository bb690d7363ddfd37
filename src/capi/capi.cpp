// The functions of obelisk.h: the library's classes without anything of C++ in their signatures.
#include "obelisk.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "base/log.h"
#include "obelisk/obelisk.h"

struct obelisk_model {
  obelisk::Model model;
};
struct obelisk_context {
  obelisk::Context context;
};
struct obelisk_error {
  obelisk_code code;
  std::string text, message, node, hint;
};

namespace {

using obelisk::Failure;
using obelisk::FailureKind;

// What is returned where there is no memory for an error.
obelisk_error no_memory = {OBELISK_MEMORY, "out of memory", "out of memory", "", ""};

obelisk_error* error_of(const Failure& failure) {
  return new obelisk_error{static_cast<obelisk_code>(failure.kind()), failure.what(),
                           failure.message(), failure.node(), failure.hint()};
}

/// Runs a function; what it throws is the answer.
template <typename Function>
obelisk_error* guarded(Function&& function) noexcept {
  try {
    try {
      function();
      return nullptr;
    } catch (const Failure& failure) {
      return error_of(failure);
    } catch (const std::bad_alloc&) {
      return &no_memory;
    } catch (const std::exception& bug) {
      return error_of(Failure(FailureKind::kBuild, bug.what(), "",
                              "this is a defect of Obelisk; please report it", bug.what()));
    }
  } catch (...) {
    return &no_memory;
  }
}

[[noreturn]] void refuse(const std::string& message, const std::string& hint = "") {
  throw Failure(FailureKind::kUsage, message, "", hint,
                "usage: " + message + (hint.empty() ? "" : "; " + hint));
}

template <typename T>
T& there(T* pointer, const char* name) {
  if (!pointer) refuse(std::string(name) + " is NULL");
  return *pointer;
}

/// The caller's struct as this library knows it: what the caller's is too short for is zero, what
/// is longer must be zero.
template <typename T>
T struct_of(const T* given, const char* name) {
  T known{};
  known.size = sizeof known;
  if (!given) return known;
  if (given->size < sizeof(size_t))
    refuse(std::string(name) + " does not tell its size", "initialise it with OBELISK_INIT");
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t at = sizeof known; at < given->size; ++at)
    if (bytes[at] != 0)
      refuse(std::string(name) + " has members that this version does not know",
             "leave them zero, or take a newer libobelisk");
  memcpy(&known, given, std::min(given->size, sizeof known));
  return known;
}

std::string text_of(const char* text) { return text ? text : ""; }

std::span<const std::byte> bytes_of(const void* memory, size_t bytes) {
  if (!memory && bytes > 0) refuse("the memory is NULL");
  return {static_cast<const std::byte*>(memory), bytes};
}

struct Interrupt {
  bool asked = false;
};

obelisk::CompileOptions options_of(const obelisk_compile_options* given,
                                   const std::shared_ptr<Interrupt>& interrupt) {
  const obelisk_compile_options o = struct_of(given, "obelisk_compile_options");
  obelisk::CompileOptions out;
  out.host_tail = false;  // shapes of these functions are known before a run
  if (o.target) out.target = o.target;
  if (o.precision) out.precision = o.precision;
  if (o.granularity) out.granularity = o.granularity;
  if (o.dispatch) out.dispatch = o.dispatch;
  if (o.search_seconds > 0) out.search_seconds = o.search_seconds;
  for (size_t k = 0; k < o.dimension_count; ++k) {
    const obelisk_dimension& each = (&there(o.dimensions, "dimensions"))[k];
    out.dimensions[text_of(each.name)] = each.extent;
  }
  for (size_t k = 0; k < o.shape_count; ++k) {
    const obelisk_shape& each = (&there(o.shapes, "shapes"))[k];
    if (each.rank > 0) there(each.extents, "extents");
    out.shapes[text_of(each.input)].assign(each.extents, each.extents + each.rank);
  }
  for (size_t k = 0; k < o.value_count; ++k) {
    const obelisk_values& each = (&there(o.values, "values"))[k];
    if (each.count > 0) there(each.values, "values");
    out.values[text_of(each.input)].assign(each.values, each.values + each.count);
  }
  out.folder = text_of(o.folder), out.compiler = text_of(o.compiler), out.cache = text_of(o.cache);
  out.memory_limit = o.memory_limit;
  if (o.verify_seconds > 0) out.verify_seconds = o.verify_seconds;
  out.verify = o.no_verify == 0, out.threads = o.threads;
  out.batch_invariant = o.batch_invariant != 0, out.watchdog = o.watchdog != 0;
  if (o.progress) {
    out.progress = [o, interrupt](const std::string& step, double done) {
      interrupt->asked |= o.progress(step.c_str(), done, o.user) != 0;
    };
    out.interrupted = [interrupt] { return interrupt->asked; };
  }
  return out;
}

obelisk::OpenOptions options_of(const obelisk_open_options* given) {
  const obelisk_open_options o = struct_of(given, "obelisk_open_options");
  obelisk::OpenOptions out;
  out.portable = o.portable != 0, out.gpu = o.gpu, out.memory_limit = o.memory_limit,
  out.watchdog = o.watchdog != 0;
  out.compiler = text_of(o.compiler), out.cache = text_of(o.cache);
  return out;
}

template <typename Make>
obelisk_error* make_model(obelisk_model** model, Make&& make) {
  return guarded([&] {
    there(model, "model") = nullptr;
    *model = new obelisk_model{make()};
  });
}

void port_of(std::span<const obelisk::Port> ports, size_t index, obelisk_port* to) {
  if (!to || to->size < sizeof(size_t))
    refuse("the port does not tell its size", "initialise it with OBELISK_INIT");
  if (index >= ports.size())
    refuse("there are " + std::to_string(ports.size()) + " ports, number " + std::to_string(index) +
           " is asked for");
  const obelisk::Port& port = ports[index];
  const obelisk_port known = {
      to->size,          port.name.c_str(), static_cast<obelisk_element>(port.element),
      port.shape.size(), port.shape.data(), port.count,
      port.bytes};
  memcpy(to, &known, std::min(to->size, sizeof known));
}

}  // namespace

extern "C" {

const char* obelisk_version_string(void) { return OBELISK_VERSION; }
uint32_t obelisk_version(void) { return OBELISK_VERSION_NUMBER; }

obelisk_code obelisk_error_code(const obelisk_error* error) {
  return error ? error->code : OBELISK_OK;
}
const char* obelisk_error_text(const obelisk_error* error) {
  return error ? error->text.c_str() : "";
}
const char* obelisk_error_message(const obelisk_error* error) {
  return error ? error->message.c_str() : "";
}
const char* obelisk_error_node(const obelisk_error* error) {
  return error ? error->node.c_str() : "";
}
const char* obelisk_error_hint(const obelisk_error* error) {
  return error ? error->hint.c_str() : "";
}
void obelisk_error_free(obelisk_error* error) {
  if (error != &no_memory) delete error;
}

void obelisk_set_log(obelisk_log_callback callback, void* user, obelisk_log_level most) {
  static std::mutex mutex;  // guards `kept`
  static std::pair<obelisk_log_callback, void*> kept;
  std::lock_guard lock(mutex);
  obelisk::set_log(nullptr, nullptr, obelisk::LogLevel::kWarning);  // nobody is inside any more
  kept = {callback, user};
  if (!callback) return;
  const auto most_of =
      static_cast<obelisk::LogLevel>(std::min(std::max(static_cast<int>(most), 0), 2));
  obelisk::set_log(
      [](obelisk::LogLevel level, const char* room, const char* text, void*) {
        kept.first(static_cast<obelisk_log_level>(level), room, text, kept.second);
      },
      nullptr, most_of);
}

obelisk_error* obelisk_compile_file(const char* path, const obelisk_compile_options* options,
                                    obelisk_model** model) {
  return make_model(model, [&] {
    return obelisk::Model::compile(std::string(&there(path, "path")),
                                   options_of(options, std::make_shared<Interrupt>()));
  });
}
obelisk_error* obelisk_compile_memory(const void* onnx, size_t bytes,
                                      const obelisk_compile_options* options,
                                      obelisk_model** model) {
  return make_model(model, [&] {
    return obelisk::Model::compile(bytes_of(onnx, bytes),
                                   options_of(options, std::make_shared<Interrupt>()));
  });
}
obelisk_error* obelisk_open_file(const char* path, const obelisk_open_options* options,
                                 obelisk_model** model) {
  return make_model(model, [&] {
    return obelisk::Model::open(std::string(&there(path, "path")), options_of(options));
  });
}
obelisk_error* obelisk_open_memory(const void* file, size_t bytes,
                                   const obelisk_open_options* options, obelisk_model** model) {
  return make_model(
      model, [&] { return obelisk::Model::open(bytes_of(file, bytes), options_of(options)); });
}
obelisk_error* obelisk_save_file(const obelisk_model* model, const char* path) {
  return guarded([&] { there(model, "model").model.save(&there(path, "path")); });
}
obelisk_error* obelisk_save_memory(const obelisk_model* model, void** file, size_t* bytes) {
  return guarded([&] {
    there(file, "file") = nullptr, there(bytes, "bytes") = 0;
    const std::vector<std::byte> saved = there(model, "model").model.save();
    *file = malloc(saved.size());
    if (!*file) throw std::bad_alloc();
    memcpy(*file, saved.data(), saved.size()), *bytes = saved.size();
  });
}
void obelisk_free(void* memory) { free(memory); }
void obelisk_model_free(obelisk_model* model) { delete model; }

size_t obelisk_input_count(const obelisk_model* model) {
  return model ? model->model.inputs().size() : 0;
}
size_t obelisk_output_count(const obelisk_model* model) {
  return model ? model->model.outputs().size() : 0;
}
obelisk_error* obelisk_input(const obelisk_model* model, size_t index, obelisk_port* port) {
  return guarded([&] { port_of(there(model, "model").model.inputs(), index, port); });
}
obelisk_error* obelisk_output(const obelisk_model* model, size_t index, obelisk_port* port) {
  return guarded([&] { port_of(there(model, "model").model.outputs(), index, port); });
}
const char* obelisk_model_name(const obelisk_model* model) {
  return model ? model->model.name().c_str() : "";
}
const char* obelisk_model_target(const obelisk_model* model) {
  return model ? model->model.target().c_str() : "";
}
int32_t obelisk_model_gpu(const obelisk_model* model) { return model ? model->model.gpu() : -1; }
int64_t obelisk_workspace_bytes(const obelisk_model* model) {
  return model ? model->model.workspace_bytes() : 0;
}
const char* obelisk_verified_rows(const obelisk_model* model) {
  return model && model->model.verification() ? model->model.verification()->rows.c_str() : "";
}

obelisk_error* obelisk_context_create(const obelisk_model* model, int32_t threads,
                                      obelisk_context** context) {
  return guarded([&] {
    there(context, "context") = nullptr;
    *context = new obelisk_context{obelisk::Context(there(model, "model").model, threads)};
  });
}
void obelisk_context_free(obelisk_context* context) { delete context; }

obelisk_error* obelisk_bind_input(obelisk_context* context, const char* name, const void* memory,
                                  size_t bytes) {
  return guarded([&] {
    obelisk::Context& inside = there(context, "context").context;
    if (memory)
      inside.bind_input(&there(name, "name"), bytes_of(memory, bytes));
    else
      inside.unbind_input(&there(name, "name"));
  });
}
obelisk_error* obelisk_bind_output(obelisk_context* context, const char* name, void* memory,
                                   size_t bytes) {
  return guarded([&] {
    obelisk::Context& inside = there(context, "context").context;
    if (memory)
      inside.bind_output(&there(name, "name"), {static_cast<std::byte*>(memory), bytes});
    else
      inside.unbind_output(&there(name, "name"));
  });
}
obelisk_error* obelisk_input_memory(obelisk_context* context, const char* name, void** memory,
                                    size_t* bytes) {
  return guarded([&] {
    const auto span = there(context, "context").context.input_bytes(&there(name, "name"));
    there(memory, "memory") = span.data();
    if (bytes) *bytes = span.size();
  });
}
obelisk_error* obelisk_output_memory(obelisk_context* context, const char* name,
                                     const void** memory, size_t* bytes) {
  return guarded([&] {
    const auto span = there(context, "context").context.output_bytes(&there(name, "name"));
    there(memory, "memory") = span.data();
    if (bytes) *bytes = span.size();
  });
}

obelisk_error* obelisk_run(obelisk_context* context) {
  return guarded([&] { there(context, "context").context.run(); });
}
obelisk_error* obelisk_run_on(obelisk_context* context, void* stream) {
  return guarded([&] { there(context, "context").context.run_on(stream); });
}
obelisk_error* obelisk_wait(obelisk_context* context) {
  return guarded([&] { there(context, "context").context.wait(); });
}

}  // extern "C"
