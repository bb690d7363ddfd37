// External data: only regular files inside of the model's folder are opened, whatever the model
// says.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

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

  // Opened first: what is looked at is the file that will be read, whatever is put in its place
  // meanwhile. The path that the system names for it has been followed to its end, so that no link
  // on the way leads out.
  std::error_code problem;
  const fs::path folder = fs::canonical(folder_, problem);
  if (problem) return refuse("is not there");
  const int file = ::open((folder / relative).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return refuse(fmt::format("is not there ({})", strerror(errno)));
  const auto close_file = std::unique_ptr<const int, void (*)(const int*)>(
      &file, [](const int* opened) { ::close(*opened); });
  struct stat about {};
  const std::string own = fmt::format("/proc/self/fd/{}", file);
  const fs::path real = fs::read_symlink(own, problem);
  if (problem || fstat(file, &about) != 0)
    return refuse(fmt::format("cannot be looked at ({})", problem.message()));
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), real.begin(), real.end());
  if (end != folder.end()) return refuse("leaves the model's folder by a symbolic link");
  if (!S_ISREG(about.st_mode)) return refuse("is not a regular file");

  TRY(std::shared_ptr<const MappedFile> mapped, MappedFile::open(own));
  files_.emplace(location, mapped);
  return mapped;
}

}  // namespace obelisk::frontends::onnx
