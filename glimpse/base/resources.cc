#include "glimpse/base/resources.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"

namespace glimpse {
namespace {

thread_local const char* trapped = nullptr;

[[noreturn]] void no_memory(const char* wanted) {
  throw UserError(fmt::format(
      "no memory for {}; a shorter context (-c), a smaller --prefill-chunk or fewer threads (-t) need less", wanted));
}

/// How ggml says that malloc or pthread_create failed.
bool says_exhausted(std::string_view message) {
  for (const std::string_view part : {"!= NULL", "fatal error", "rc == 0", "failed to reserve", "failed to allocate"}) {
    if (message.find(part) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

AbortTrap::AbortTrap(const char* wanted) : outer_(trapped) {
  trapped = wanted;
}

AbortTrap::~AbortTrap() {
  trapped = outer_;
}

void AbortTrap::aborting(const char* message) {
  if (trapped == nullptr) {
    log_message(LogLevel::warning, message);
    return;
  }
  if (says_exhausted(message)) no_memory(trapped);
  throw InternalError(fmt::format("ggml: {}", message));
}

void require_heap(std::size_t bytes, const char* wanted) {
  // Written to, or the compiler leaves out both calls.
  auto* volatile probe = static_cast<unsigned char*>(std::malloc(bytes));
  if (probe == nullptr) no_memory(wanted);
  probe[0] = 1;
  std::free(probe);
}

void require_threads(int count) {
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  const auto end_all = [&] {
    over.store(true);
    over.notify_all();
    for (std::thread& thread : threads) thread.join();
  };
  threads.reserve(static_cast<std::size_t>(count));
  try {
    while (threads.size() < static_cast<std::size_t>(count)) threads.emplace_back([&] { over.wait(false); });
  } catch (const std::exception& error) {  // std::system_error, or no memory for one
    const std::size_t started = threads.size();
    end_all();
    throw UserError(
        fmt::format("the system starts {} more threads of {}: {}; give -t a smaller number or raise the "
                    "limits of memory and processes (ulimit)",
                    started, count, error.what()));
  }
  end_all();
}

}  // namespace glimpse
