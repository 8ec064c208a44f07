#include "glimpse/cli/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "glimpse/base/error.h"

namespace glimpse::cli {

WholeFile::WholeFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path_, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw UserError(fmt::format("'{}' is not a regular file; give the name of a file to write", path_.string()));
  }
  temporary_ = path_;
  temporary_ += fmt::format(".part{}", ::getpid());
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) refuse(errno);
}

WholeFile::~WholeFile() {
  if (file_ < 0) return;
  ::close(file_);
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void WholeFile::finish(std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(file_, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) refuse(done == 0 ? ENOSPC : errno);
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  if (::fsync(file_) != 0) refuse(errno);  // what a full disk or a quota refuses late
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) refuse(error.value());
  ::close(file_);
  file_ = -1;
}

void WholeFile::refuse(int error) const {
  throw UserError(fmt::format("cannot write '{}': {}", path_.string(), std::strerror(error)));
}

}  // namespace glimpse::cli
