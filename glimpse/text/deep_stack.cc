#include "glimpse/text/deep_stack.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <exception>

#include "glimpse/base/error.h"

namespace glimpse::text {
namespace {

constexpr std::size_t kPage = 65536;  // no machine has larger ones by default

[[noreturn]] void refuse(std::size_t bytes, int error) {
  throw UserError(
      fmt::format("the text takes up to {} MB of stack to tokenise, which this machine does not give: {}; "
                  "break its longest word or raise the limit of address space",
                  bytes >> 20, std::strerror(error)));
}

/// Memory with a page at its low end that nothing may touch.
class Stack {
 public:
  explicit Stack(std::size_t bytes) : size_((bytes + kPage - 1) / kPage * kPage + kPage) {
    base_ =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (base_ == MAP_FAILED) refuse(bytes, errno);
    ::mprotect(base_, kPage, PROT_NONE);
  }
  ~Stack() { ::munmap(base_, size_); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  void* low() const { return static_cast<char*>(base_) + kPage; }
  std::size_t size() const { return size_ - kPage; }

 private:
  std::size_t size_;
  void* base_ = nullptr;
};

struct Call {
  const std::function<void()>* work;
  std::exception_ptr failure;
};

void* run(void* argument) {
  Call& call = *static_cast<Call*>(argument);
  try {
    (*call.work)();
  } catch (...) {
    call.failure = std::current_exception();
  }
  return nullptr;
}

}  // namespace

void on_deep_stack(std::size_t bytes, const std::function<void()>& work) {
  const Stack stack(bytes);
  Call call{&work, nullptr};
  pthread_attr_t attributes;
  check(pthread_attr_init(&attributes) == 0, "pthread_attr_init failed");
  const bool fits = pthread_attr_setstack(&attributes, stack.low(), stack.size()) == 0;
  pthread_t thread;
  const int error = fits ? pthread_create(&thread, &attributes, run, &call) : EINVAL;
  pthread_attr_destroy(&attributes);
  if (error != 0) refuse(bytes, error);
  pthread_join(thread, nullptr);
  if (call.failure) std::rethrow_exception(call.failure);
}

}  // namespace glimpse::text
