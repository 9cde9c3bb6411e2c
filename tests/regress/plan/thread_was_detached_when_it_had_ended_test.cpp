// Two ranks of a process that each left a thread behind at one time ended the process at times
// ("terminate called without an active exception", or SIGSEGV): std::thread::detach() came when the
// thread had ended, and glibc 2.36 then looked at memory that another thread had by then.
#include <gtest/gtest.h>
#include <pthread.h>

#include <future>
#include <memory>

#include "penstock/core/background_thread.h"

namespace penstock {
namespace {

int state_of_this_thread() {
  pthread_attr_t attributes;
  int state = -1;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return state;
  pthread_attr_getdetachstate(&attributes, &state);
  pthread_attr_destroy(&attributes);
  return state;
}

TEST(Regress, AThreadThatNobodyJoinsBeginsDetached) {
  for (int i = 0; i < 500; ++i) {
    const auto state = std::make_shared<std::promise<int>>();
    start_detached_thread([state] { state->set_value(state_of_this_thread()); });
    ASSERT_EQ(state->get_future().get(), PTHREAD_CREATE_DETACHED) << "thread " << i;
  }
}

}  // namespace
}  // namespace penstock
