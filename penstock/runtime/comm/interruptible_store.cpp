#include "penstock/runtime/comm/interruptible_store.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/answer_of.h"

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* kPrefix = "run";
constexpr milliseconds kGrace(5000);  // Time for an answer that needs no waiting.
constexpr milliseconds kPauseMax(20);

}  // namespace

InterruptibleStore::InterruptibleStore(c10::intrusive_ptr<c10d::Store> store,
                                       std::shared_ptr<const Interrupt> interrupt)
    : PrefixStore(kPrefix, store),
      answering_(c10::make_intrusive<c10d::PrefixStore>(kPrefix, std::move(store))),
      interrupt_(std::move(interrupt)) {}

// c10d waits without a deadline for what a store answers.
template <class Call>
auto InterruptibleStore::answer(Call call) const {
  return answer_of([store = answering_, call = std::move(call)] { return call(*store); },
                   *interrupt_, kGrace, "the store does not answer");
}

std::vector<std::uint8_t> InterruptibleStore::get(const std::string& key) {
  wait({key});
  return answer([key](c10d::PrefixStore& store) { return store.get(key); });
}

std::vector<std::vector<std::uint8_t>> InterruptibleStore::multiGet(
    const std::vector<std::string>& keys) {
  wait(keys);
  return answer([keys](c10d::PrefixStore& store) { return store.multiGet(keys); });
}

bool InterruptibleStore::check(const std::vector<std::string>& keys) {
  return answer([keys](c10d::PrefixStore& store) { return store.check(keys); });
}

void InterruptibleStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

// No store's wait can be ended from outside, and c10d warns of each that ends by its timeout.  So
// keys are asked for, one after the other, ever less often.
void InterruptibleStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  interrupt_->check();
  const auto end = steady_clock::now() + timeout;
  if (check(keys)) return;
  milliseconds pause(1);
  for (const std::string& key : keys) {
    while (!check({key})) {
      interrupt_->check();
      if (steady_clock::now() >= end) {
        throw CommError(str("not there within ", timeout.count(), " ms"));
      }
      // A store takes one call at a time: let other threads of this rank have theirs.
      std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kPauseMax);
    }
  }
}

void InterruptibleStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  answer([key, value](c10d::PrefixStore& store) { store.set(key, value); });
}

}  // namespace penstock::comm
