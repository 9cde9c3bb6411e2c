#include "penstock/runtime/comm/calls.h"

#include <sstream>

#include "penstock/core/check.h"
#include "penstock/core/text.h"

namespace penstock::comm {

struct CallsOfThread {
  mutable std::mutex mutex;
  std::string name;  // Name of the outermost call, or of the last one.
  Callers callers = Callers::All;
  bool has_spoken = false;
  int depth = 0;  // Used by the thread alone.
  // Number of the call in the process; 0: the thread is in none.
  std::atomic<std::uint64_t> call{0};
};

namespace {

const std::shared_ptr<CallsOfThread>& of_this_thread() {
  thread_local const auto calls = std::make_shared<CallsOfThread>();
  return calls;
}

}  // namespace

void Call::begin(std::string_view name, Callers callers) {
  static std::atomic<std::uint64_t> calls_begun{0};
  CallsOfThread& calls = *of_this_thread();
  if (calls.depth++ > 0) return;
  const std::lock_guard lock(calls.mutex);
  calls.name = name;
  calls.callers = callers;
  calls.has_spoken = false;
  calls.call.store(++calls_begun, std::memory_order_relaxed);
}

void Call::end() {
  CallsOfThread& calls = *of_this_thread();
  PENSTOCK_CHECK(calls.depth > 0, "a call ends that has not begun");
  if (--calls.depth > 0) return;
  const std::lock_guard lock(calls.mutex);
  calls.call.store(0, std::memory_order_relaxed);
}

std::string_view Call::name() {
  const CallsOfThread& calls = *of_this_thread();
  return calls.depth > 0 ? std::string_view(calls.name) : std::string_view();
}

void Call::speaks() {
  CallsOfThread& calls = *of_this_thread();
  const std::lock_guard lock(calls.mutex);
  calls.has_spoken = true;
}

CallLog::CallLog() : calls_(of_this_thread()) {}

void CallLog::speak() {
  spoken_.fetch_add(1, std::memory_order_relaxed);
  const auto& calls = of_this_thread();
  const std::uint64_t call = calls->call.load(std::memory_order_relaxed);
  if (call == 0 || call == heard_.load(std::memory_order_relaxed)) return;
  number(calls, call);
}

void CallLog::number(const std::shared_ptr<CallsOfThread>& calls, std::uint64_t call) {
  const std::scoped_lock lock(mutex_, calls->mutex);
  calls->has_spoken = true;
  calls_ = calls;
  heard_.store(call, std::memory_order_relaxed);
  if (calls->callers == Callers::Some) return;
  numbered_ = call;
  ++number_;
}

void CallLog::forget() {
  const std::lock_guard lock(mutex_);
  number_ = 0;
  numbered_ = 0;
  heard_.store(0, std::memory_order_relaxed);
}

CallPlace CallLog::place() const {
  const std::lock_guard own(mutex_);
  const std::lock_guard lock(calls_->mutex);
  const std::uint64_t call = calls_->call.load(std::memory_order_relaxed);
  return {.name = calls_->name,
          .is_inside = call != 0,
          .has_spoken = calls_->has_spoken,
          .number = call != 0 && call == numbered_ ? number_ : 0,
          .spoken = spoken_.load(std::memory_order_relaxed)};
}

std::string to_text(const CallPlace& place) {
  return str(place.is_inside, " ", place.has_spoken, " ", place.number, " ", place.spoken, " ",
             place.name);
}

CallPlace parse_call_place(const std::string& text) {
  CallPlace place;
  std::istringstream words(text);
  words >> place.is_inside >> place.has_spoken >> place.number >> place.spoken;
  words.get();
  std::getline(words, place.name);
  return place;
}

}  // namespace penstock::comm
