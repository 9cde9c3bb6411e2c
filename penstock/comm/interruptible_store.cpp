#include "penstock/comm/interruptible_store.h"

#include <algorithm>
#include <exception>
#include <future>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* kPrefix = "run";
constexpr milliseconds kSlice(200);   // Of a wait that can be interrupted.
constexpr milliseconds kGrace(5000);  // For an answer that needs no waiting.

}  // namespace

InterruptibleStore::InterruptibleStore(c10::intrusive_ptr<c10d::Store> store,
                                       const Interrupt& interrupt)
    : PrefixStore(kPrefix, store),
      answering_(c10::make_intrusive<c10d::PrefixStore>(kPrefix, std::move(store))),
      interrupt_(interrupt) {}

// c10d waits without a deadline for what a store answers, and nothing can end that.  So a thread of
// its own asks, and is left behind when no answer comes.  Time is counted in slices, each as one
// however long it took: to a process that was stopped, no answer is late.
template <class Call>
auto InterruptibleStore::answer(Call call, milliseconds limit) const {
  using Result = std::invoke_result_t<Call, c10d::PrefixStore&>;
  std::packaged_task<Result()> task(
      [store = answering_, call = std::move(call)] { return call(*store); });
  std::future<Result> result = task.get_future();
  std::thread(std::move(task)).detach();
  for (milliseconds waited(0); result.wait_for(kSlice) != std::future_status::ready;
       waited += kSlice) {
    interrupt_.check();
    if (waited >= limit) throw CommError("the store does not answer");
  }
  return result.get();
}

std::vector<std::uint8_t> InterruptibleStore::get(const std::string& key) {
  wait({key});
  return answer([key](c10d::PrefixStore& store) { return store.get(key); }, kGrace);
}

std::vector<std::vector<std::uint8_t>> InterruptibleStore::multiGet(
    const std::vector<std::string>& keys) {
  wait(keys);
  return answer([keys](c10d::PrefixStore& store) { return store.multiGet(keys); }, kGrace);
}

bool InterruptibleStore::check(const std::vector<std::string>& keys) {
  return answer([keys](c10d::PrefixStore& store) { return store.check(keys); }, kGrace);
}

void InterruptibleStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

// No store's wait can be ended from outside, but each has a timeout.
void InterruptibleStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  const auto end = steady_clock::now() + timeout;
  while (true) {
    interrupt_.check();
    const auto begin = steady_clock::now();
    const auto left = std::chrono::ceil<milliseconds>(end - begin);
    const milliseconds slice = std::clamp(left, milliseconds(1), kSlice);
    try {
      return answer([keys, slice](c10d::PrefixStore& store) { store.wait(keys, slice); },
                    slice + kGrace);
    } catch (const CommError&) {
      throw;
    } catch (const std::exception&) {
      interrupt_.check();
      const bool lost = steady_clock::now() - begin < slice;
      if (lost) throw;
      if (steady_clock::now() >= end) {
        throw CommError(str("not there within ", timeout.count(), " ms"));
      }
    }
  }
}

}  // namespace penstock::comm
