// A thread whose system calls a filter refuses, as those of a container or of an older kernel are.
//
// Tests of what has another way then: under_refusal(SYS_pipe2, ENOSYS, [] { ... }).  Threads and
// processes that the body starts are under the filter, too.  Linux only.
#pragma once
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace penstock::testing_support {

struct RefusedCall {
  int number = 0;            // SYS_pipe2.
  std::size_t argument = 0;  // Refused where this one, counted from 0, ...
  std::uint32_t bits = 0;    // ... has all these bits.
  RefusedCall(long call) : number(static_cast<int>(call)) {}
  RefusedCall(long call, std::size_t which, std::uint32_t all_of)
      : number(static_cast<int>(call)), argument(which), bits(all_of) {}
};

// Refuses the call in this thread, for good.  False where the system takes no filters.
inline bool refuse(const RefusedCall& call, int error) {
  const auto load = [](std::size_t offset) {
    return sock_filter(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)));
  };
  const auto unless_equal = [](std::uint32_t value, std::uint8_t skipped) {
    return sock_filter(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped));
  };
  const auto number = static_cast<std::uint32_t>(call.number);
  const auto answer = SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error);
  std::vector<sock_filter> rules = {
      load(offsetof(seccomp_data, nr)),
      unless_equal(number, 4),
      load(offsetof(seccomp_data, args) + 8 * call.argument),  // Its lower half.
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, call.bits),
      unless_equal(call.bits, 1),
      BPF_STMT(BPF_RET | BPF_K, answer),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = static_cast<unsigned short>(rules.size()),
                           .filter = rules.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Runs `body` in a thread of its own.  False where the system takes no filters: it did not run.
template <class Body>
bool under_refusal(const RefusedCall& call, int error, const Body& body) {
  bool is_filtered = false;
  std::thread([&] {
    is_filtered = refuse(call, error);
    if (is_filtered) body();
  }).join();
  return is_filtered;
}

}  // namespace penstock::testing_support
