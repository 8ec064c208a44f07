// Writing a session so that a process killed at any moment leaves the old file or the new one.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "glimpse/base/error.h"
#include "glimpse/engine/session/file.h"

namespace glimpse::engine {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;
constexpr mode_t kNewMode = 0600;  // a session holds what the user said
constexpr std::string_view kPart = ".part";

/// A link is followed, so that it stays one.
std::filesystem::path target_of(const std::filesystem::path& file) {
  std::error_code failed;
  std::filesystem::path target = std::filesystem::canonical(file, failed);
  return failed ? file : target;
}

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kSessionAlign - 1) / kSessionAlign * kSessionAlign;
}

std::size_t head_bytes(std::size_t sections) {
  return aligned(sizeof(SessionHeader) + sections * sizeof(SessionEntry));
}

/// Whether a part file is one that a save left behind: empty, or its head not written yet, or ours.
bool is_abandoned(int part) {
  char magic[kSessionMagic.size()] = {};
  const ::ssize_t got = ::pread(part, magic, sizeof magic, 0);
  const bool blank = std::all_of(std::begin(magic), std::end(magic), [](char c) { return c == 0; });
  return got == 0 || (got == sizeof magic && (blank || std::string_view(magic, sizeof magic) == kSessionMagic));
}

/// FILE.part under a lock, or -1 with errno. A process that was killed leaves one behind; nobody holds its lock.
int open_part(const std::filesystem::path& part) {
  for (;;) {
    const int file = ::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kNewMode);
    if (file < 0) return -1;
    struct stat mine {
    }, named{};
    const bool locked = ::flock(file, LOCK_EX | LOCK_NB) == 0;
    const int error = errno;
    // It may have been renamed between opening and locking.
    if (locked && ::fstat(file, &mine) == 0 && ::stat(part.c_str(), &named) == 0 && mine.st_ino == named.st_ino &&
        mine.st_dev == named.st_dev) {
      return file;
    }
    ::close(file);
    if (locked) continue;
    errno = error;
    return -1;
  }
}

}  // namespace

void require_session_place(const std::filesystem::path& file) {
  std::error_code failed;
  const std::filesystem::path target = target_of(file);
  const auto fail = [&](std::string_view why) {
    throw UserError(fmt::format("--session '{}': {}", file.string(), why));
  };
  if (file.empty() || !target.has_filename()) fail("give the name of a file");
  const bool there = std::filesystem::exists(target, failed);
  if (failed) fail(fmt::format("{}; give another name", failed.message()));
  if (there && !std::filesystem::is_regular_file(target, failed)) fail("is not a regular file; give another name");
  const auto longest = static_cast<std::size_t>(NAME_MAX) - kPart.size();
  if (target.filename().native().size() > longest) {
    fail(fmt::format("its name has {} bytes; give one of {} at most", target.filename().native().size(), longest));
  }
  const std::filesystem::path folder = folder_of(target);
  if (!std::filesystem::is_directory(folder, failed)) fail("its folder does not exist; make it, or give another name");
  if (there) return;  // it can be read
  if (const std::string why = why_read_only(file); !why.empty()) fail(why);
}

std::string why_read_only(const std::filesystem::path& file) {
  if (::access(folder_of(target_of(file)).c_str(), W_OK | X_OK) == 0) return "";
  return fmt::format("its folder cannot be written to: {}", std::strerror(errno));
}

void remove_abandoned_part(const std::filesystem::path& part) {
  const int file = open_part(part);
  if (file < 0) return;
  if (is_abandoned(file)) ::unlink(part.c_str());
  ::close(file);
}

SessionWriter::SessionWriter(const std::filesystem::path& file, std::size_t sections)
    : file_(target_of(file)), part_(file_), sections_(sections) {
  require_session_place(file);
  part_ += kPart;
  buffer_.reserve(kBuffer);  // before the file is open: nobody would close it
  descriptor_ = open_part(part_);
  if (descriptor_ < 0 && errno == EWOULDBLOCK) {
    throw UserError(
        fmt::format("--session '{}': another process is saving it; wait for it, or give another name", file_.string()));
  }
  if (descriptor_ < 0) fail("open");
  if (!is_abandoned(descriptor_)) {
    ::close(descriptor_);
    throw UserError(fmt::format(
        "--session '{}': '{}', where it would be written first, is another file; move it, or give another name",
        file_.string(), part_.string()));
  }
  struct stat old {};
  if (::stat(file_.c_str(), &old) == 0) ::fchmod(descriptor_, old.st_mode & 0777);
  written_ = head_bytes(sections);
  if (::ftruncate(descriptor_, 0) != 0 || ::lseek(descriptor_, static_cast<off_t>(written_), SEEK_SET) < 0) {
    const int error = errno;
    ::close(descriptor_);
    errno = error;
    fail("begin");
  }
}

SessionWriter::~SessionWriter() {
  if (descriptor_ < 0) return;
  if (!committed_) ::unlink(part_.c_str());
  ::close(descriptor_);
}

void SessionWriter::fail(std::string_view what) const {
  throw UserError(fmt::format("--session '{}': cannot {} it: {}; what was there before is left as it is",
                              file_.string(), what, std::strerror(errno)));
}

void SessionWriter::flush() {
  std::span<const std::byte> left(buffer_);
  while (!left.empty()) {
    const ssize_t done = ::write(descriptor_, left.data(), left.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write");
    left = left.subspan(static_cast<std::size_t>(done));
  }
  buffer_.clear();
}

void SessionWriter::put(std::span<const std::byte> bytes) {
  sum_.add(bytes);
  written_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kBuffer - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
    bytes = bytes.subspan(count);
    if (buffer_.size() == kBuffer) flush();
  }
}

void SessionWriter::begin(SectionKind kind, std::uint32_t index) {
  end_section();
  check(table_.size() < sections_, "as many sections as were said");
  table_.push_back({static_cast<std::uint32_t>(kind), index, written_, 0, 0});
  sum_ = {};
}

void SessionWriter::append(std::span<const std::byte> bytes) {
  check(!table_.empty(), "bytes are a section's");
  put(bytes);
}

void SessionWriter::end_section() {
  if (table_.empty()) return;
  SessionEntry& entry = table_.back();
  entry.bytes = written_ - entry.offset;
  constexpr std::array<std::byte, kSessionAlign> zeros{};
  put(std::span(zeros).first(static_cast<std::size_t>(aligned(entry.bytes) - entry.bytes)));
  entry.checksum = sum_.value();
}

void SessionWriter::commit() {
  seal();
  publish();
}

void SessionWriter::seal() {
  end_section();
  check(table_.size() == sections_, "as many sections as were said");
  flush();
  SessionHeader header{};
  std::copy(kSessionMagic.begin(), kSessionMagic.end(), header.magic);
  header.version = kSessionVersion;
  header.sections = static_cast<std::uint32_t>(sections_);
  header.file_bytes = written_;
  Checksum sum;
  sum.add(std::as_bytes(std::span(&header, 1)));
  sum.add(std::as_bytes(std::span(table_)));
  header.checksum = sum.value();
  std::vector<std::byte> head(head_bytes(sections_));
  std::memcpy(head.data(), &header, sizeof header);
  std::memcpy(head.data() + sizeof header, table_.data(), table_.size() * sizeof(SessionEntry));
  if (::pwrite(descriptor_, head.data(), head.size(), 0) != static_cast<ssize_t>(head.size())) fail("write");
}

void SessionWriter::publish() {
  if (::fsync(descriptor_) != 0) fail("sync");
  const std::filesystem::path place = folder_of(file_);  // after the rename nothing may fail
  if (::rename(part_.c_str(), file_.c_str()) != 0) fail("rename");
  committed_ = true;
  // Only now is the new name sure to be found after a loss of power.
  const int folder = ::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

}  // namespace glimpse::engine
