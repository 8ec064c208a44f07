#include "glimpse/base/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "glimpse/base/error.h"

namespace glimpse {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kNewMode = 0666, kFolderMode = 0700;

class OpenFile {
 public:
  explicit OpenFile(int descriptor) : descriptor_(descriptor) {}
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return descriptor_; }
  /// 0, or -1 with errno.
  int close() { return ::close(std::exchange(descriptor_, -1)); }

 private:
  int descriptor_;
};

[[noreturn]] void fail(std::string_view what, const fs::path& file, int error) {
  throw UserError(fmt::format("cannot {} '{}': {}", what, file.string(), std::strerror(error)));
}

void make_folders(const fs::path& folder, const fs::path& file) {
  if (folder.empty() || ::mkdir(folder.c_str(), kFolderMode) == 0 || errno == EEXIST) return;
  if (errno != ENOENT || folder == folder.parent_path()) fail("make the folder of", file, errno);
  make_folders(folder.parent_path(), file);
  if (::mkdir(folder.c_str(), kFolderMode) != 0 && errno != EEXIST) fail("make the folder of", file, errno);
}

/// A new file beside the target, with its name and the process's number in front of ".part".
fs::path open_part(const fs::path& target, int& descriptor) {
  for (int i = 0;; ++i) {
    fs::path part = target;
    part += fmt::format(".{}-{}.part", ::getpid(), i);
    descriptor = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kNewMode);
    if (descriptor >= 0) return part;
    if (errno != EEXIST) fail("write", target, errno);
  }
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(file, bytes.data(), bytes.size());
    if (done < 0 && errno != EINTR) return false;
    if (done > 0) bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  return true;
}

}  // namespace

std::optional<std::string> read_whole_file(const fs::path& file, std::size_t most) {
  // O_NONBLOCK: a pipe is refused below and not waited for.
  const OpenFile open(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (open.get() < 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  if (open.get() < 0) fail("read", file, errno);
  struct stat status {};
  if (::fstat(open.get(), &status) != 0) fail("read", file, errno);
  if (!S_ISREG(status.st_mode)) throw UserError(fmt::format("cannot read '{}': not a regular file", file.string()));
  std::string bytes;
  for (;;) {
    constexpr std::size_t kStep = 1 << 16;
    const std::size_t before = bytes.size();
    bytes.resize(before + kStep);
    const ssize_t got = ::read(open.get(), bytes.data() + before, kStep);
    const int error = errno;
    bytes.resize(before + static_cast<std::size_t>(got > 0 ? got : 0));
    if (got < 0 && error != EINTR) fail("read", file, error);
    if (got == 0) return bytes;
    if (bytes.size() > most) {
      throw UserError(fmt::format("'{}' is larger than {} bytes, the most that is read", file.string(), most));
    }
  }
}

namespace {

/// The regular file that a name leads to, with its folders made where it is new.
struct Target {
  explicit Target(const fs::path& file) : path(file) {
    std::error_code failed;
    if (const fs::path found = fs::canonical(file, failed); !failed) path = found;
    struct stat old {};
    there = ::stat(path.c_str(), &old) == 0;
    mode = old.st_mode & 0777;
    if (!path.has_filename() || (there && !S_ISREG(old.st_mode))) {
      throw UserError(fmt::format("cannot write '{}': not a regular file; give another name", file.string()));
    }
    if (!there) make_folders(path.parent_path(), file);
  }
  fs::path path;
  bool there = false;
  mode_t mode = 0;
};

}  // namespace

void require_replaceable(const fs::path& file) {
  int descriptor = -1;
  const fs::path part = open_part(Target(file).path, descriptor);
  const OpenFile out(descriptor);
  ::unlink(part.c_str());
}

void replace_file(const fs::path& file, std::string_view bytes) {
  const Target to(file);
  const fs::path& target = to.path;
  int descriptor = -1;
  const fs::path part = open_part(target, descriptor);
  OpenFile out(descriptor);
  if (to.there) ::fchmod(out.get(), to.mode);
  if (!write_all(out.get(), bytes) || ::fsync(out.get()) != 0 || out.close() != 0 ||
      std::rename(part.c_str(), target.c_str()) != 0) {
    const int error = errno;
    ::unlink(part.c_str());
    fail("write", file, error);
  }
  // Only now is the new name sure to be found after a loss of power.
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  const OpenFile place(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (place.get() >= 0) ::fsync(place.get());
}

}  // namespace glimpse
