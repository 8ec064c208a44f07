#include "glimpse/text/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>
#include <optional>
#include <string_view>

#include "glimpse/base/error.h"

namespace glimpse::text {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kGuard = std::size_t{1} << 20;  // wider than any frame of what recurses
constexpr std::chrono::milliseconds kTick{10};        // between two looks at the child's memory

/// Goes before the answer's bytes.
struct Header {
  std::uint64_t end = 0;
  std::uint64_t bytes = 0;
};

// ---- In the child, which has one thread.

constexpr int kAnswerFile = 0;
std::uintptr_t child_stack_end = 0;  // the lowest address of the guard

void write_all(const void* data, std::size_t size) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(kAnswerFile, from, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) ::_exit(1);  // nobody reads any more
    from += written;
    size -= static_cast<std::size_t>(written);
  }
}

/// Safe in a signal handler.
[[noreturn]] void finish(ChildEnd end, std::string_view bytes = {}) {
  const Header header{static_cast<std::uint64_t>(end), bytes.size()};
  write_all(&header, sizeof header);
  write_all(bytes.data(), bytes.size());
  ::_exit(0);
}

void on_fault(int signal, siginfo_t* info, void*) {
  const bool address = signal == SIGSEGV || signal == SIGBUS;
  const bool overflow = address && reinterpret_cast<std::uintptr_t>(info->si_addr) - child_stack_end < 2 * kGuard;
  finish(overflow ? ChildEnd::stack : ChildEnd::crash);
}

/// Pages of /proc/PID/statm: 1 is what is resident, 5 what is private and may be written.
std::optional<std::size_t> pages_of(const char* process, int field) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), "/proc/%s/statm", process);
  const int file = ::open(text.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  const ssize_t size = ::read(file, text.data(), text.size() - 1);
  ::close(file);
  std::array<unsigned long, 6> values{};
  text[static_cast<std::size_t>(std::max<ssize_t>(size, 0))] = '\0';
  if (std::sscanf(text.data(), "%lu %lu %lu %lu %lu %lu", &values[0], &values[1], &values[2], &values[3], &values[4],
                  &values[5]) != 6) {
    return std::nullopt;
  }
  return values[static_cast<std::size_t>(field)];
}

std::size_t page_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

void lower_limit(decltype(RLIMIT_CORE) what, rlim_t value) {
  rlimit limit{};
  if (::getrlimit(what, &limit) != 0) return;
  limit.rlim_cur = std::min(value, limit.rlim_cur);
  limit.rlim_max = std::min(limit.rlim_max, what == RLIMIT_CPU ? value : limit.rlim_max);
  ::setrlimit(what, &limit);
}

void bound_resources(const ChildLimits& limits) {
  lower_limit(RLIMIT_CORE, 0);
  // The parent keeps the time; this ends a child whose parent is stopped.
  lower_limit(RLIMIT_CPU, static_cast<rlim_t>(std::chrono::ceil<std::chrono::seconds>(limits.time).count() + 1));
  if (kSanitized) return;  // its own memory counts; the parent's look at what is resident has to do
  if (const auto pages = pages_of("self", 5)) lower_limit(RLIMIT_DATA, *pages * page_bytes() + limits.memory);
}

/// Every signal came here blocked and stays so, but for the faults: no handler of the program runs in the child.
void catch_faults(void* stack, std::size_t size) {
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = size;
  ::sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigset_t faults;
  ::sigemptyset(&faults);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    ::sigaction(signal, &action, nullptr);
    ::sigaddset(&faults, signal);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
}

/// What `work` throws, terminates: the frames above are the parent's.
[[noreturn]] void live(const std::function<std::string()>& work, const ChildLimits& limits, int answer,
                       pid_t parent) noexcept {
  alignas(16) std::array<char, 64 * 1024> fault_stack;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  bound_resources(limits);
  ::dup2(answer, kAnswerFile);
  ::close_range(kAnswerFile + 1, ~0u, 0);
  child_stack_end = reinterpret_cast<std::uintptr_t>(fault_stack.data()) - kChildStack - kGuard;
  catch_faults(fault_stack.data(), fault_stack.size());
  std::set_new_handler([] { finish(ChildEnd::memory); });
  std::set_terminate([] { finish(ChildEnd::crash); });
  finish(ChildEnd::answer, work());
}

// ---- In the parent, on a thread of its own.

class File {
 public:
  explicit File(int file) : file_(file) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return file_; }
  void close() {
    if (file_ >= 0) ::close(file_);
    file_ = -1;
  }

 private:
  int file_;
};

/// Ended and reaped with the object.
class Child {
 public:
  explicit Child(pid_t id) : id_(id), name_(fmt::format("{}", id)), first_pages_(resident()) {}
  ~Child() {
    // A program that ignores SIGCHLD, or waits for any child, may have reaped it: then the id may be another's.
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT) == 0) ::kill(id_, SIGKILL);
    while (::waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  std::size_t grown_bytes() const { return (std::max(resident(), first_pages_) - first_pages_) * page_bytes(); }

  /// Processor time, or the most that there is where the system does not say.
  std::chrono::nanoseconds busy() const {
    clockid_t clock{};
    std::timespec time{};
    if (::clock_getcpuclockid(id_, &clock) != 0 || ::clock_gettime(clock, &time) != 0) {
      return std::chrono::nanoseconds::max();
    }
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }

 private:
  std::size_t resident() const { return pages_of(name_.c_str(), 1).value_or(0); }

  pid_t id_;
  std::string name_;
  std::size_t first_pages_;
};

struct Ending {
  ChildAnswer answer;
  bool waited = false;  ///< its time went by, and it may have waited for a lock
};

/// A child that has hardly computed waits. A sanitizer's allocator spins while it waits: there any child may.
bool may_wait(const Child& child, const ChildLimits& limits) {
  return kSanitized || child.busy() < limits.time / 10;
}

/// The answer in `bytes`, once it is complete.
std::optional<ChildAnswer> whole_answer(std::string& bytes, std::size_t most) {
  Header header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.end > static_cast<std::uint64_t>(ChildEnd::crash) || header.bytes > most) return ChildAnswer{};
  if (bytes.size() - sizeof header < header.bytes) return std::nullopt;
  bytes.erase(0, sizeof header);
  return ChildAnswer{static_cast<ChildEnd>(header.end), std::move(bytes)};
}

Ending listen(const Child& child, int file, const ChildLimits& limits) {
  const Clock::time_point deadline = Clock::now() + limits.time;
  std::string bytes;
  std::array<char, 65536> piece;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return {{ChildEnd::time, {}}, may_wait(child, limits)};
    pollfd wanted{file, POLLIN, 0};
    if (::poll(&wanted, 1, static_cast<int>(std::min(left, kTick).count())) <= 0) {
      if (child.grown_bytes() > limits.memory) return {{ChildEnd::memory, {}}};
      continue;
    }
    const ssize_t size = ::read(file, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return {};
    bytes.append(piece.data(), static_cast<std::size_t>(size));
    if (auto answer = whole_answer(bytes, limits.memory)) return {std::move(*answer)};
  }
}

[[noreturn]] void refuse(int error) {
  throw UserError(
      fmt::format("the system gives no process to run the model's chat template in: {}; free some, "
                  "or use --raw",
                  std::strerror(error)));
}

Ending fork_and_listen(const std::function<std::string()>& work, const ChildLimits& limits) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) refuse(errno);
  const File from(ends[0]);
  File to(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t id = ::fork();
  if (id < 0) refuse(errno);
  if (id == 0) live(work, limits, to.get(), parent);
  const Child child(id);
  to.close();
  return listen(child, from.get(), limits);
}

struct Job {
  const std::function<std::string()>& work;
  const ChildLimits& limits;
  Ending ending;
  std::exception_ptr error;
};

void* run_job(void* pointer) {
  Job& job = *static_cast<Job*>(pointer);
  try {
    job.ending = fork_and_listen(job.work, job.limits);
  } catch (...) {
    job.error = std::current_exception();
  }
  return nullptr;
}

/// The child goes on on the stack of the thread that forks: this one's is as large as it is to be, and it has every
/// signal blocked.
Ending run_on_large_stack(const std::function<std::string()>& work, const ChildLimits& limits) {
  Job job{work, limits, {}, {}};
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kChildStack + kGuard);
  ::pthread_attr_setguardsize(&attributes, kGuard);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const int error = ::pthread_create(&thread, &attributes, run_job, &job);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (error != 0) refuse(error);
  ::pthread_join(thread, nullptr);
  if (job.error) std::rethrow_exception(job.error);
  return std::move(job.ending);
}

}  // namespace

ChildAnswer run_in_child(const std::function<std::string()>& work, const ChildLimits& limits) {
  Ending ending = run_on_large_stack(work, limits);
  // For a lock that another thread held at the fork, or for a machine that is far too busy: once more.
  for (int tried = 1; ending.waited && tried < kChildTries; ++tried) ending = run_on_large_stack(work, limits);
  return std::move(ending.answer);
}

}  // namespace glimpse::text
