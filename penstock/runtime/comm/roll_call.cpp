#include "penstock/runtime/comm/roll_call.h"

#include <sstream>
#include <utility>

#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

constexpr char kFailure = 'F', kEnd = 'E';

}  // namespace

bool RollCall::begin(const std::string& place) {
  {
    const std::lock_guard lock(mutex_);
    ++call_;
    place_ = place;
    check_left();
    if (!failure_.empty() && failed_call_ <= call_) {
      interrupt_.raise(std::exchange(failure_, ""), Interrupt::Kind::Failure);
    }
    if (interrupt_.is_failure() && failed_call_ < call_) return true;
  }
  interrupt_.check();
  return false;
}

std::string RollCall::place() const {
  const std::lock_guard lock(mutex_);
  return str(place_, ", call ", call_);
}

std::int64_t RollCall::age() const {
  const std::lock_guard lock(mutex_);
  return age_;
}

std::string RollCall::begin_age() {
  const std::lock_guard lock(mutex_);
  ++age_;
  failure_.clear();
  return interrupt_.clear();
}

std::string RollCall::news(char kind, const std::string& text) const {
  return str(age_, " ", kind, " ", self_, " ", call_, " ", text);
}

std::string RollCall::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  failed_call_ = call_;
  interrupt_.raise(why, Interrupt::Kind::Failure);
  return news(kFailure, why);
}

std::string RollCall::leave() const {
  const std::lock_guard lock(mutex_);
  return news(kEnd, place_);
}

void RollCall::hear(const std::string& news) {
  std::istringstream words(news);
  std::int64_t age = 0, call = 0;
  std::int32_t from = 0;
  char kind = 0;
  words >> age >> kind >> from >> call;
  words.get();
  std::string text(std::istreambuf_iterator<char>(words), {});
  const std::lock_guard lock(mutex_);
  if (kind == kEnd) {
    left_[Rank(from)] = {call, std::move(text)};
    return check_left();
  }
  if (age != age_ || interrupt_.raised()) return;
  failed_call_ = call;
  if (call > call_) {
    failure_ = text;
    interrupt_.announce(text);
  } else {
    interrupt_.raise(text, Interrupt::Kind::Failure);
  }
}

bool RollCall::has_left(Rank rank) const {
  const std::lock_guard lock(mutex_);
  return left_.contains(rank);
}

void RollCall::check_left() {
  for (const auto& [rank, left] : left_) {
    if (left.call >= call_ || interrupt_.raised()) continue;
    failed_call_ = call_;
    interrupt_.raise(str("rank ", rank, " has ended: its last call was ", left.place, "; rank ",
                         self_, " is in ", place_),
                     Interrupt::Kind::Failure);
  }
}

}  // namespace penstock::comm
