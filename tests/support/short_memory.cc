#include "tests/support/short_memory.h"

#include <cstdlib>
#include <new>

namespace glimpse::testing {
namespace {

struct State {
  Shortage shortage;
  bool on = false, met = false;
};
thread_local State state;

bool fails(std::size_t size) {
  if (!state.on || size < state.shortage.least_bytes || state.shortage.passing-- > 0) return false;
  if (state.met && !state.shortage.lasting) return false;
  state.met = true;
  return true;
}

}  // namespace

ShortMemory::ShortMemory(const Shortage& shortage) {
  state = {shortage, true, false};
}
ShortMemory::~ShortMemory() {
  state.on = false;
}
bool ShortMemory::met() const {
  return state.met;
}

}  // namespace glimpse::testing

void* operator new(std::size_t size) {
  if (glimpse::testing::fails(size)) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return glimpse::testing::fails(size) ? nullptr : std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
