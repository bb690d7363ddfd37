/// base/private_folder.h — a folder of files that only this user may write, each of which is what
/// was put there.
///
///   TRY(const auto folder, PrivateFolder::open(path));
///   folder->put("0123.so", bytes);
///   std::optional<std::string> bytes = folder->get("0123.so");
///
/// A folder that is made is the user's alone (mode 0700); one that belongs to somebody else, or
/// that others can write to, is refused. Behind each file's bytes stands a keyed hash (BLAKE2b) of
/// its name and its bytes. The key, 32 random bytes in the file `key`, is made with the first file;
/// only the user can read it. Files are opened once, relative to the folder's descriptor and not
/// through links, and what was checked is what is handed out.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace obelisk {

class PrivateFolder {
 public:
  /// Makes it where it is not there. Errors: kUsage, with the command that mends it.
  static Result<std::shared_ptr<const PrivateFolder>> open(const std::string& path);
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;

  /// Nothing: there is no such file, or it is not one that this user put there under this name.
  std::optional<std::string> get(const std::string& name) const;
  /// Whole or not at all.
  Status put(const std::string& name, std::string_view bytes) const;

 private:
  PrivateFolder(std::string path, int folder, std::string key)
      : path_(std::move(path)), folder_(folder), key_(std::move(key)) {}
  std::string tag(const std::string& name, std::string_view bytes) const;
  std::string path_;
  int folder_;
  std::string key_;
};

}  // namespace obelisk
