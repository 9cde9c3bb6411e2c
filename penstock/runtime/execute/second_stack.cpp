#include "penstock/runtime/execute/second_stack.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include "penstock/core/check.h"

namespace penstock::execute {
namespace {

constexpr std::size_t kBytes = std::size_t{8} << 20;  // A thread has as many.

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

SecondStack::SecondStack() {
  void* const memory = ::mmap(nullptr, kBytes + page_bytes(), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "memory for a second stack");
  }
  memory_ = static_cast<std::byte*>(memory);
  ::mprotect(memory_, page_bytes(), PROT_NONE);
  ::getcontext(&here_);
  here_.uc_stack.ss_sp = memory_ + page_bytes();
  here_.uc_stack.ss_size = kBytes;
  here_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&here_, reinterpret_cast<void (*)()>(&SecondStack::run), 2,
                static_cast<unsigned int>(self >> 32), static_cast<unsigned int>(self));
#if defined(__SANITIZE_THREAD__)
  here_for_tools_ = __tsan_create_fiber(0);
#endif
}

SecondStack::~SecondStack() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(here_for_tools_);
#endif
  ::munmap(memory_, kBytes + page_bytes());
}

void SecondStack::begin(std::function<void()> body) {
  PENSTOCK_CHECK(!body_, "the second stack is in use");
  body_ = std::move(body);
  go_on();
}

void SecondStack::go_on() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&caller_for_tools_, here_.uc_stack.ss_sp, kBytes);
#elif defined(__SANITIZE_THREAD__)
  caller_for_tools_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(here_for_tools_, 0);
#endif
  ::swapcontext(&caller_, &here_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(caller_for_tools_, nullptr, nullptr);
#endif
}

void SecondStack::leave() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&here_for_tools_, callers_stack_, callers_bytes_);
#elif defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(caller_for_tools_, 0);
#endif
  ::swapcontext(&here_, &caller_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(here_for_tools_, &callers_stack_, &callers_bytes_);
#endif
}

// One body after the other.
void SecondStack::run(unsigned int high, unsigned int low) {
  auto& self = *reinterpret_cast<SecondStack*>((std::uintptr_t{high} << 32) | low);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self.callers_stack_, &self.callers_bytes_);
#endif
  for (;;) {
    self.body_();
    self.body_ = nullptr;
    self.leave();
  }
}

}  // namespace penstock::execute
