/// obelisk/model_folder.h — the models of `serve`: a folder a model, with the model's file and
/// perhaps a model.toml.
///
///   models/minilm/model.onnx, or .obk
///   models/minilm/model.toml    deadline_ms = 20, [dimensions] sequence = 128
#pragma once

#include "serve/door/service.h"

namespace obelisk::cli {

/// Classes and quotas of tenants, from a file: a table a tenant. Errors: kUsage.
Result<std::map<std::string, serve::door::TenantClass>> read_tenants(const std::string& path);

class ModelFolder final : public serve::door::Repository {
 public:
  /// Errors: kUsage where there is no such folder.
  static Result<ModelFolder> open(const std::string& path);
  std::vector<std::string> names() const override;
  std::optional<Result<serve::ModelConfig>> find(const std::string& name) const override;

 private:
  explicit ModelFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace obelisk::cli
