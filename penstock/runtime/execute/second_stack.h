// A second stack of a thread, on which a function runs by turns with its caller.
//
// braid.h has one.  Its memory is the system's, with a page in front that nobody may touch, and
// costs only what has been used.  Knows nothing of what runs there.
// Thread safety: one thread uses it.
#pragma once
#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace penstock::execute {

class SecondStack {
 public:
  // Throws: std::system_error where the system has no memory.
  SecondStack();
  ~SecondStack();
  SecondStack(const SecondStack&) = delete;
  SecondStack& operator=(const SecondStack&) = delete;

  // Runs `body` there, and returns when that leaves, or is over.  REQUIRES: nothing else is there;
  // `body` throws nothing.
  void begin(std::function<void()> body);
  // Runs it on.  REQUIRES: it has left.
  void go_on();
  // Called there: the caller goes on, until it runs this on.
  void leave();

 private:
  static void run(unsigned int high, unsigned int low);  // The halves of `this`.

  std::byte* memory_;
  std::function<void()> body_;  // Empty: nothing is there.
  ucontext_t caller_{};
  ucontext_t here_{};
  // What sanitizers know the stacks by.
  void* caller_for_tools_ = nullptr;
  void* here_for_tools_ = nullptr;
  const void* callers_stack_ = nullptr;
  std::size_t callers_bytes_ = 0;
};

}  // namespace penstock::execute
