// obelisk cache: what the object cache holds, and emptying it.
#include <algorithm>
#include <filesystem>

#include "flags.h"

namespace obelisk::cli {
namespace {

namespace fs = std::filesystem;

/// Objects are named by a hash in hexadecimal digits. Anything else in the folder is not ours and
/// is left alone.
bool is_object(const fs::path& path) {
  const std::string stem = path.stem().string();
  const std::string kind = path.extension().string();
  return (kind == ".so" || kind == ".cubin" || kind == ".verified") && stem.size() >= 16 &&
         stem.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

int cache(const Flags& flags, bool clear) {
  const std::string folder = runtime::cache_folder(flags.cache);
  Json entries = Json::array();
  std::string text;
  uintmax_t bytes = 0, removed = 0;
  std::error_code failed;
  std::vector<fs::path> files;
  if (!folder.empty() && fs::exists(folder, failed)) {
    for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed))
      if (is_object(at->path())) files.push_back(at->path());
  }
  if (failed)
    return fail(flags,
                Error{Code::kUsage, "cli",
                      fmt::format("the cache '{}' cannot be read: {}", folder, failed.message())});
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    const uintmax_t size = fs::file_size(file, failed);
    if (failed) continue;  // another process removed it
    if (clear) {
      if (!fs::remove(file, failed)) {
        if (!failed) continue;
        return fail(flags, Error{Code::kUsage, "cli",
                                 fmt::format("'{}' cannot be removed: {}", file.string(),
                                             failed.message())});
      }
      ++removed;
    } else {
      entries.push_back({{"file", file.filename().string()}, {"bytes", size}});
      text += fmt::format("{:>10}  {}\n", size, file.filename().string());
    }
    bytes += size;
  }
  if (clear && !folder.empty())
    fs::remove(fs::path(folder) / "key", failed);  // of entries that are gone now
  const double megabytes = static_cast<double>(bytes) / 1e6;
  if (folder.empty()) {
    text = "the cache is off: neither OBELISK_CACHE, XDG_CACHE_HOME nor HOME names a folder\n";
  } else if (clear) {
    text = fmt::format("removed {} objects, {:.1f} MB, from {}\n", removed, megabytes, folder);
  } else {
    text += fmt::format("{} objects, {:.1f} MB in {}\n", entries.size(), megabytes, folder);
  }
  if (clear)
    answer(flags, {{"folder", folder}, {"removed", removed}, {"bytes", bytes}}, text);
  else
    answer(flags, {{"folder", folder}, {"bytes", bytes}, {"entries", entries}}, text);
  return 0;
}

}  // namespace obelisk::cli
