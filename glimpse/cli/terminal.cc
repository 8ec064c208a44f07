#include "glimpse/cli/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "glimpse/base/error.h"

namespace glimpse::cli {
namespace {

constexpr std::size_t kBufferBytes = 1 << 16;
constexpr auto kRefresh = std::chrono::milliseconds(100);

// Returns errno of the first failure, 0 when all is written.
int write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(file, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  return 0;
}

volatile std::sig_atomic_t interrupted = 0;

/// A terminal that obeys control sequences.
bool takes_controls(int file) {
  const char* kind = std::getenv("TERM");
  return ::isatty(file) == 1 && kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

}  // namespace

std::optional<std::size_t> terminal_columns(int file) {
  winsize size{};
  if (::isatty(file) != 1 || ::ioctl(file, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

Output::Output(const std::filesystem::path& path) : label_(fmt::format("'{}'", path.string())) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) throw UserError(fmt::format("cannot write {}: {}", label_, std::strerror(errno)));
}

Output::~Output() {
  if (!failed() && !pending_.empty()) write_all(file_, pending_);
  if (file_ > 2) ::close(file_);
}

void Output::write(std::string_view bytes) {
  if (failed()) return;
  pending_ += bytes;
  if (pending_.size() >= kBufferBytes) flush();
}

void Output::flush() {
  if (failed()) return;
  error_ = write_all(file_, pending_);
  pending_.clear();
}

void Output::require_ok() {
  flush();
  if (failed()) throw UserError(fmt::format("cannot write to {}: {}", label_, std::strerror(error_)));
}

void print(std::string_view text) {
  Output out = Output::standard();
  out.write(text);
  out.require_ok();
}

void print_error(std::string_view text) {
  std::string line = "error: ";
  for (const char c : text) line += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  line += '\n';
  write_all(2, line);
}

void print_note(std::string_view text) {
  write_all(2, fmt::format("{}\n", text));
}

void reserve_standard_files() {
  for (int file = 0; file <= 2; ++file) {
    // Read-only for outputs and write-only for input: using them fails as using a closed one does.
    if (::fcntl(file, F_GETFD) < 0) (void)::open("/dev/null", file == 0 ? O_WRONLY : O_RDONLY);
  }
}

ProgressBar::ProgressBar(std::string_view label, std::string_view unit, bool wanted)
    : label_(label), unit_(unit), enabled_(wanted && takes_controls(2)) {}

void ProgressBar::update(std::int64_t done, std::int64_t total) {
  const auto now = Clock::now();
  if (!enabled_ || total <= 0 || (shown_ && now - last_ < kRefresh)) return;
  last_ = now;
  shown_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string line = fmt::format("{} {}/{} {}, {:.0f} %", label_, done, total, unit_,
                                 100.0 * static_cast<double>(done) / static_cast<double>(total));
  if (done > 0) {
    line += fmt::format(", {:.1f} {}/s, {:.0f} s left", rate, unit_, static_cast<double>(total - done) / rate);
  }
  // A line that reaches the last column would wrap, and the next return would not come back to its start.
  if (const auto columns = terminal_columns(2)) line.resize(std::min(line.size(), *columns - 1));
  write_all(2, "\r" + line + "\x1b[K");
}

void ProgressBar::clear() {
  if (shown_) write_all(2, "\r\x1b[K");
  shown_ = false;
}

InterruptGuard::InterruptGuard() {
  interrupted = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  ::sigaction(SIGINT, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
}

bool InterruptGuard::requested() const {
  return interrupted != 0;
}

}  // namespace glimpse::cli
