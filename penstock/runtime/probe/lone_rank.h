// The exchanges of a rank that shares layers with others, none of which is there.
//
// The probe runs shared layers with it.  The rank's own code of exchanges runs, with its buffers;
// what others would send is zeros.  Knows no layers.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "penstock/plan/partition/cut.h"
#include "penstock/runtime/stage/exchanges.h"

namespace penstock::probe {

// What was sent so far.
struct Sent {
  std::int64_t bytes = 0;
  std::int64_t exchanges = 0;
};

// A message that others would send: it begins to come, or is waited for.
struct MessageEvent {
  enum class Kind : std::uint8_t { Begin, Await };
  Kind kind = Kind::Begin;
  std::int64_t number = 0;  // Number among all messages, in the order in which they begin.
  std::int64_t bytes = 0;
};
using HearMessage = std::function<void(const MessageEvent& event)>;

// REQUIRES: nobody asks it how large a whole is of which only a part is known.
class ExchangesAlone : public stage::Exchanges {
 public:
  virtual Sent sent() const = 0;
  // Tells of messages from now on.
  virtual void tell(HearMessage hear) = 0;
};
std::shared_ptr<ExchangesAlone> exchanges_alone(const partition::Share& share);

}  // namespace penstock::probe
