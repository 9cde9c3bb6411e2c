#include "penstock/comm/interruptible_store.h"

#include <algorithm>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::comm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

InterruptibleStore::InterruptibleStore(c10::intrusive_ptr<c10d::Store> store,
                                       const Interrupt& interrupt)
    : PrefixStore("run", std::move(store)), interrupt_(interrupt) {}

std::vector<std::uint8_t> InterruptibleStore::get(const std::string& key) {
  wait({key});
  return PrefixStore::get(key);
}

std::vector<std::vector<std::uint8_t>> InterruptibleStore::multiGet(
    const std::vector<std::string>& keys) {
  wait(keys);
  return PrefixStore::multiGet(keys);
}

void InterruptibleStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

// No store's wait can be ended from outside, but each has a timeout.
void InterruptibleStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  constexpr milliseconds kSlice(200);
  const auto end = steady_clock::now() + timeout;
  while (true) {
    interrupt_.check();
    const auto begin = steady_clock::now();
    const auto left = std::chrono::ceil<milliseconds>(end - begin);
    const milliseconds slice = std::clamp(left, milliseconds(1), kSlice);
    try {
      return PrefixStore::wait(keys, slice);
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
