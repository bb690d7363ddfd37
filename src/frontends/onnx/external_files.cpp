// External data: only regular files inside of the model's folder are opened, whatever the model
// says.
#include <algorithm>
#include <filesystem>

#include "frontends/onnx/model.h"

namespace obelisk::frontends::onnx {

namespace fs = std::filesystem;

Result<std::shared_ptr<const MappedFile>> ExternalFiles::open(std::string_view location) {
  const std::lock_guard lock(mutex_);
  if (const auto found = files_.find(location); found != files_.end()) return found->second;

  const auto refuse = [&](std::string_view why) {
    return bad_model(fmt::format("external data '{}' {}", location, why), "",
                     "put the file beside the model and name it by a relative path");
  };
  if (location.empty()) return bad_model("external data names no file");
  if (location.find('\0') != location.npos) return bad_model("external data names no valid path");
  const fs::path relative(location);
  if (relative.is_absolute()) return refuse("is an absolute path");
  if (std::find(relative.begin(), relative.end(), "..") != relative.end())
    return refuse("leaves the model's folder");

  // The path is followed to its end, so that no link on the way leads out.
  std::error_code problem;
  const fs::path folder = fs::canonical(folder_, problem);
  if (problem) return refuse("is not there");
  const fs::path file = fs::canonical(folder / relative, problem);
  if (problem) return refuse(fmt::format("is not there ({})", problem.message()));
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  if (end != folder.end()) return refuse("leaves the model's folder by a symbolic link");
  if (!fs::is_regular_file(file, problem)) return refuse("is not a regular file");

  TRY(std::shared_ptr<const MappedFile> mapped, MappedFile::open(file.string()));
  files_.emplace(location, mapped);
  return mapped;
}

}  // namespace obelisk::frontends::onnx
