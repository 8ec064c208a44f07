// A file that appears under its name only when it is complete: until then it is a temporary one beside it, removed when
// the writer is destroyed early. Owns its descriptor; one thread.
#pragma once

#include <filesystem>
#include <string_view>

namespace glimpse::cli {

class WholeFile {
 public:
  /// Opens the temporary file, so that a folder that cannot be written to is refused before the work. Throws UserError
  /// naming `path`; also for one that is no regular file.
  explicit WholeFile(std::filesystem::path path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  /// Writes all of it and puts the file in its place. Throws UserError when that fails; what was there is as before.
  void finish(std::string_view text);

 private:
  [[noreturn]] void refuse(int error) const;

  std::filesystem::path path_, temporary_;
  int file_ = -1;
};

}  // namespace glimpse::cli
