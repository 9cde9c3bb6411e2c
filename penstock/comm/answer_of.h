// Calls that nothing can end from outside, like those of a c10d store, so that waiting for them
// ends.
//
// InterruptibleStore and GlooConnector make theirs here.  Knows no stores and no connections.
#pragma once
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "penstock/comm/interrupt.h"
#include "penstock/core/background_thread.h"
#include "penstock/core/error.h"

namespace penstock::comm {

// What `call` returns or throws.  A thread of its own makes the call, and is left behind when the
// waiting ends without it; so `call` owns all that it uses.
// Throws: CommError with the interrupt's reason once that is raised; one that says `late` after
// about `limit`.  Time is counted in slices, each as one however long it took: to a process that
// was stopped, no answer is late.
template <class Call>
auto answer_of(Call call, const Interrupt& interrupt, std::chrono::milliseconds limit,
               const char* late) {
  using Result = std::invoke_result_t<Call>;
  constexpr std::chrono::milliseconds kSlice(200);
  const auto task = std::make_shared<std::packaged_task<Result()>>(std::move(call));
  std::future<Result> result = task->get_future();
  start_background_thread([task] { (*task)(); }).detach();
  for (std::chrono::milliseconds waited(0); result.wait_for(kSlice) != std::future_status::ready;
       waited += kSlice) {
    interrupt.check();
    if (waited >= limit) throw CommError(late);
  }
  return result.get();
}

}  // namespace penstock::comm
