// Memory and threads that a C library (ggml) asks for and cannot do without: its process ends where there are none.
// These make a UserError of that. Any thread.
#pragma once

#include <cstddef>

namespace glimpse {

/// Where a trap lives on the calling thread, the library throws instead of aborting, through its own frames: what it
/// had allocated by then is lost. Each thread has its own traps; they nest.
class AbortTrap {
 public:
  /// `wanted`: what memory is asked for; a static text for the message.
  explicit AbortTrap(const char* wanted);
  ~AbortTrap();
  AbortTrap(const AbortTrap&) = delete;
  AbortTrap& operator=(const AbortTrap&) = delete;

  /// What the library is to call before it aborts (ggml_set_abort_callback). On a thread with a trap it throws: a
  /// UserError where the library says that memory or threads are short, else an InternalError with what it says. On
  /// any other thread it logs and returns.
  static void aborting(const char* message);

 private:
  const char* outer_;
};

/// Throws UserError unless so much can be allocated at once; then it is free again. For code that does not look at what
/// malloc returns.
void require_heap(std::size_t bytes, const char* wanted);

/// Throws UserError unless so many threads can be started at once; they have ended then.
void require_threads(int count);

}  // namespace glimpse
