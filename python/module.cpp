// The extension module: the library's classes as Python sees them. What is pleasant about them is
// written in Python (obelisk/__init__.py).
#include <dlpack/dlpack.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <optional>

#include "frontends/frontends.h"
#include "obelisk/dlpack.h"
#include "obelisk/obelisk.h"

namespace nb = nanobind;
using namespace nb::literals;
using obelisk::Context;
using obelisk::Failure;
using obelisk::FailureKind;
using obelisk::Model;

namespace {

/// obelisk._errors.make(kind, message, node, hint, text): the exception of that kind.
void raise(const Failure& failure) {
  nb::object make = nb::module_::import_("obelisk._errors").attr("make");
  nb::object made = make(static_cast<int>(failure.kind()), failure.message(), failure.node(),
                         failure.hint(), std::string(failure.what()));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

/// What Python threw inside of a callback, until the library has returned. Ctrl-C is noticed here,
/// too.
class Callbacks {
 public:
  explicit Callbacks(nb::object progress) : progress_(std::move(progress)) {}

  void tell(const std::string& step, double done) {
    if (progress_.is_none()) return;
    nb::gil_scoped_acquire held;
    if (thrown_) return;
    try {
      progress_(step, done);
    } catch (nb::python_error& error) {
      thrown_.emplace(std::move(error));
    }
  }
  bool interrupted() {
    nb::gil_scoped_acquire held;
    if (!thrown_ && PyErr_CheckSignals() != 0) thrown_.emplace();
    return thrown_.has_value();
  }
  /// Runs a function of the library without the interpreter's lock.
  template <typename Function>
  auto run(Function&& function) {
    std::optional<Failure> failure;
    std::optional<decltype(function())> made;
    {
      nb::gil_scoped_release released;
      try {
        made.emplace(function());
      } catch (const Failure& told) {
        failure = told;
      }
    }
    if (thrown_) throw std::move(*thrown_);
    if (failure) throw *failure;
    return std::move(*made);
  }

 private:
  nb::object progress_;
  std::optional<nb::python_error> thrown_;
};

using Ports = std::vector<std::tuple<std::string, std::string, std::vector<int64_t>>>;
Ports ports_of(std::span<const obelisk::Port> ports) {
  Ports out;
  for (const obelisk::Port& port : ports)
    out.emplace_back(port.name, obelisk::element_name(port.element), port.shape);
  return out;
}

std::span<const std::byte> bytes_of(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

obelisk::CompileOptions options_of(const nb::dict& given,
                                   const std::shared_ptr<Callbacks>& callbacks) {
  obelisk::CompileOptions o;
  for (const auto& [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "shapes")
      o.shapes = nb::cast<std::map<std::string, std::vector<int64_t>>>(value);
    else if (name == "dimensions")
      o.dimensions = nb::cast<std::map<std::string, int64_t>>(value);
    else if (name == "values")
      o.values = nb::cast<std::map<std::string, std::vector<int64_t>>>(value);
    else if (name == "in_place")
      o.in_place = nb::cast<std::map<std::string, std::string>>(value);
    else if (name == "target")
      o.target = nb::cast<std::string>(value);
    else if (name == "granularity")
      o.granularity = nb::cast<std::string>(value);
    else if (name == "dispatch")
      o.dispatch = nb::cast<std::string>(value);
    else if (name == "search_seconds")
      o.search_seconds = nb::cast<double>(value);
    else if (name == "precision")
      o.precision = nb::cast<std::string>(value);
    else if (name == "memory_limit")
      o.memory_limit = nb::cast<int64_t>(value);
    else if (name == "batch_invariant")
      o.batch_invariant = nb::cast<bool>(value);
    else if (name == "watchdog")
      o.watchdog = nb::cast<bool>(value);
    else if (name == "threads")
      o.threads = nb::cast<int>(value);
    else if (name == "host_tail")
      o.host_tail = nb::cast<bool>(value);
    else if (name == "verify")
      o.verify = nb::cast<bool>(value);
    else if (name == "verify_seconds")
      o.verify_seconds = nb::cast<double>(value);
    else if (name == "compiler")
      o.compiler = nb::cast<std::string>(value);
    else if (name == "cache")
      o.cache = nb::cast<std::string>(value);
    else if (name == "folder")
      o.folder = nb::cast<std::string>(value);
    else if (name == "memory")
      for (const auto& [location, where] :
           nb::cast<std::map<std::string, std::pair<uintptr_t, size_t>>>(value))
        o.memory[location] = {reinterpret_cast<const std::byte*>(where.first), where.second};
    else
      throw Failure(FailureKind::kUsage, "there is no option '" + name + "'", "",
                    "help(obelisk.compile) names them", "there is no option '" + name + "'");
  }
  o.progress = [callbacks](const std::string& step, double done) { callbacks->tell(step, done); };
  o.interrupted = [callbacks] { return callbacks->interrupted(); };
  return o;
}

obelisk::OpenOptions open_options(bool portable, int gpu, int64_t memory_limit,
                                  const std::string& compiler, const std::string& cache) {
  obelisk::OpenOptions o;
  o.portable = portable, o.gpu = gpu, o.memory_limit = memory_limit, o.compiler = compiler,
  o.cache = cache;
  return o;
}

/// A tensor as DLPack describes it, to be checked and bound.
template <typename Array>
void bind(Context& context, const std::string& name, const Array& array, bool input) {
  std::vector<int64_t> shape(array.ndim()), strides(array.ndim());
  for (size_t d = 0; d < array.ndim(); ++d)
    shape[d] = static_cast<int64_t>(array.shape(d)), strides[d] = array.stride(d);
  const auto type = array.dtype();
  DLTensor tensor = {};
  tensor.data = const_cast<void*>(static_cast<const void*>(array.data()));
  tensor.device.device_type = static_cast<DLDeviceType>(array.device_type()),
  tensor.device.device_id = array.device_id();
  tensor.ndim = static_cast<int>(array.ndim()), tensor.shape = shape.data(),
  tensor.strides = strides.data();
  tensor.dtype.code = type.code, tensor.dtype.bits = type.bits, tensor.dtype.lanes = type.lanes;
  input ? obelisk::bind_input(context, name, tensor) : obelisk::bind_output(context, name, tensor);
}

nb::object verification_of(const Model& model) {
  const auto& v = model.verification();
  if (!v) return nb::none();
  nb::dict out;
  out["max_abs"] = v->max_abs, out["max_rel"] = v->max_rel, out["tolerance"] = v->tolerance,
  out["rounding"] = v->rounding;
  out["rows"] = v->rows, out["before"] = v->before;
  return out;
}

/// The inputs and outputs of a model file, with names where dimensions are not known.
nb::dict describe(const obelisk::Result<obelisk::frontends::onnx::Model>& model) {
  if (!model.ok()) {
    const obelisk::Error& error = model.error();
    throw Failure(static_cast<FailureKind>(error.code), error.message, error.node, error.hint,
                  error.text());
  }
  const auto about = obelisk::frontends::inspect(*model);
  const auto list = [](const std::vector<obelisk::frontends::PortDescription>& ports) {
    nb::list out;
    for (const auto& port : ports)
      out.append(
          nb::make_tuple(port.name, port.type, port.has_shape ? nb::cast(port.shape) : nb::none()));
    return out;
  };
  nb::dict out;
  out["inputs"] = list(about.inputs), out["outputs"] = list(about.outputs),
  out["symbols"] = about.symbols;
  out["values"] = obelisk::frontends::value_dependent_inputs(*model);
  return out;
}

}  // namespace

NB_MODULE(_obelisk, m) {
  m.attr("__version__") = OBELISK_VERSION;
  nb::set_leak_warnings(false);  // caches of PyTorch hold models until the process ends
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Failure& failure) {
      raise(failure);
    }
  });

  m.def("describe_file", [](const std::string& path) {
    return describe(obelisk::frontends::onnx::read_model(path));
  });
  m.def("describe_bytes", [](const nb::bytes& file) {
    return describe(obelisk::frontends::onnx::read_model_bytes(
        {static_cast<const char*>(file.data()), file.size()}, nullptr, ""));
  });

  nb::class_<Model>(m, "Model")
      .def_static(
          "compile_file",
          [](const std::string& path, const nb::dict& options, nb::object progress) {
            const auto callbacks = std::make_shared<Callbacks>(std::move(progress));
            const auto o = options_of(options, callbacks);
            return callbacks->run([&] { return Model::compile(path, o); });
          },
          "path"_a, "options"_a, "progress"_a.none())
      .def_static(
          "compile_bytes",
          [](const nb::bytes& file, const nb::dict& options, nb::object progress) {
            const auto callbacks = std::make_shared<Callbacks>(std::move(progress));
            const auto o = options_of(options, callbacks);
            return callbacks->run([&] { return Model::compile(bytes_of(file), o); });
          },
          "file"_a, "options"_a, "progress"_a.none())
      .def_static("open_file",
                  [](const std::string& path, bool portable, int gpu, int64_t memory_limit,
                     const std::string& compiler, const std::string& cache) {
                    return Callbacks(nb::none()).run([&] {
                      return Model::open(
                          path, open_options(portable, gpu, memory_limit, compiler, cache));
                    });
                  })
      .def_static("open_bytes",
                  [](const nb::bytes& file, bool portable, int gpu, int64_t memory_limit,
                     const std::string& compiler, const std::string& cache) {
                    return Callbacks(nb::none()).run([&] {
                      return Model::open(bytes_of(file), open_options(portable, gpu, memory_limit,
                                                                      compiler, cache));
                    });
                  })
      .def("save_file",
           [](const Model& model, const std::string& path) {
             Callbacks(nb::none()).run([&] { return model.save(path), 0; });
           })
      .def("save_bytes",
           [](const Model& model) {
             const auto saved = Callbacks(nb::none()).run([&] { return model.save(); });
             return nb::bytes(saved.data(), saved.size());
           })
      .def_prop_ro("name", [](const Model& model) { return model.name(); })
      .def_prop_ro("inputs", [](const Model& model) { return ports_of(model.inputs()); })
      .def_prop_ro("outputs", [](const Model& model) { return ports_of(model.outputs()); })
      .def_prop_ro("in_place",
                   [](const Model& model) {
                     std::map<std::string, std::pair<std::string, bool>> out;
                     for (const obelisk::Port& port : model.outputs())
                       if (!port.in_place_of.empty())
                         out[port.name] = {port.in_place_of, port.updates};
                     return out;
                   })
      .def_prop_ro("target", [](const Model& model) { return model.target(); })
      .def_prop_ro("gpu", &Model::gpu)
      .def_prop_ro("workspace_bytes", &Model::workspace_bytes)
      .def_prop_ro("verification", &verification_of)
      .def_prop_ro("unverified", [](const Model& model) { return model.unverified(); })
      .def_prop_ro("slow_ops", [](const Model& model) {
        return std::vector<std::string>(model.slow_ops().begin(), model.slow_ops().end());
      });

  nb::class_<Context>(m, "Context")
      .def("__init__", [](Context* self, const Model& model,
                          int threads) { new (self) Context(model, threads); })
      .def("bind_input", [](Context& self, const std::string& name,
                            const nb::ndarray<nb::ro>& array) { bind(self, name, array, true); })
      .def("bind_output", [](Context& self, const std::string& name,
                             const nb::ndarray<>& array) { bind(self, name, array, false); })
      // Of element types that have no name in DLPack: so many bytes at an address.
      .def("bind_input_at",
           [](Context& self, const std::string& name, uintptr_t at, size_t bytes) {
             self.bind_input(name, {reinterpret_cast<const std::byte*>(at), bytes});
           })
      .def("bind_output_at",
           [](Context& self, const std::string& name, uintptr_t at, size_t bytes) {
             self.bind_output(name, {reinterpret_cast<std::byte*>(at), bytes});
           })
      // A run with all inputs and outputs, in the order of the model's, dense at these addresses;
      // the caller has looked at their types and shapes. With a stream as run_on().
      .def("run_at",
           [](Context& self, const std::vector<uintptr_t>& inputs,
              const std::vector<uintptr_t>& outputs, std::optional<uintptr_t> stream) {
             const Model& model = self.model();
             const auto ins = model.inputs(), outs = model.outputs();
             if (inputs.size() != ins.size() || outputs.size() != outs.size())
               throw nb::value_error("run_at: an address for each input and output");
             for (size_t k = 0; k < ins.size(); ++k)
               self.bind_input(ins[k].name,
                               {reinterpret_cast<const std::byte*>(inputs[k]), ins[k].bytes});
             for (size_t k = 0; k < outs.size(); ++k)
               self.bind_output(outs[k].name,
                                {reinterpret_cast<std::byte*>(outputs[k]), outs[k].bytes});
             Callbacks(nb::none()).run([&] {
               return stream ? self.run_on(reinterpret_cast<void*>(*stream)) : self.run(), 0;
             });
           })
      .def("output_shape", &Context::output_shape)
      .def("output_copy",
           [](Context& self, const std::string& name) {
             const auto made = self.output_bytes(name);
             return nb::bytes(made.data(), made.size());
           })
      .def("run", [](Context& self) { Callbacks(nb::none()).run([&] { return self.run(), 0; }); })
      .def("run_on",
           [](Context& self, uintptr_t stream) {
             Callbacks(nb::none()).run([&] {
               return self.run_on(reinterpret_cast<void*>(stream)), 0;
             });
           })
      .def("wait",
           [](Context& self) { Callbacks(nb::none()).run([&] { return self.wait(), 0; }); });
}
