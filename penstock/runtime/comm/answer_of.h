// Ends the wait for a call that nothing can end from outside, such as one of a c10d store.
//
// Whoever opens a store, asks it, or connects by Gloo does so here.  Knows no stores and no
// connections.
#pragma once
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "penstock/core/background_thread.h"
#include "penstock/core/error.h"
#include "penstock/runtime/comm/interrupt.h"

namespace penstock::comm {

// What `call` returns or throws.  A thread of its own makes the call, and is left behind when the
// wait ends first; so `call` owns all that it uses.
// Throws: CommError with the interrupt's reason once that is raised; CommError that says `late`
// after about `limit`.  Waiting is counted in slices.  A slice counts the same however long it
// took, so a process that was stopped finds no answer late.
template <class Call>
auto answer_of(Call call, const Interrupt& interrupt, std::chrono::milliseconds limit,
               const char* late) {
  using Result = std::invoke_result_t<Call>;
  constexpr std::chrono::milliseconds kSlice(200);
  const auto task = std::make_shared<std::packaged_task<Result()>>(std::move(call));
  std::future<Result> result = task->get_future();
  start_detached_thread([task] { (*task)(); });
  for (std::chrono::milliseconds waited(0); result.wait_for(kSlice) != std::future_status::ready;
       waited += kSlice) {
    interrupt.check();
    if (waited >= limit) throw CommError(late);
  }
  return result.get();
}

}  // namespace penstock::comm
