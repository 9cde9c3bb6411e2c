// The exchanges of a rank that shares layers with others, none of which is there.
//
// The probe runs shared layers with it.  The rank's own code of exchanges runs, with its buffers;
// what others would send is zeros.  Knows no layers.
#pragma once
#include <cstdint>
#include <memory>

#include "penstock/plan/partition/cut.h"
#include "penstock/runtime/stage/exchanges.h"

namespace penstock::probe {

// What was sent so far.
struct Sent {
  std::int64_t bytes = 0;
  std::int64_t exchanges = 0;
};

// REQUIRES: nobody asks it how large a whole is of which only a part is known.
class ExchangesAlone : public stage::Exchanges {
 public:
  virtual Sent sent() const = 0;
};
std::shared_ptr<ExchangesAlone> exchanges_alone(const partition::Share& share);

}  // namespace penstock::probe
