// What a stage asks of the ranks that share its layers with it: exchanges of values.
//
// border.h asks, execute/group_exchanges.h answers.  Knows no layers.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "penstock/plan/exchange/exchange.h"
#include "penstock/plan/partition/cut.h"

namespace penstock::stage {

// Whether the other pass of an overlapped pair runs until the result is needed (execute/braid.h).
enum class Waits : std::uint8_t { Aside, InPlace };

struct AskedExchange {
  exchange::Action action;     // One that sends.
  std::int64_t dimension = 0;  // AllGather and ReduceScatter: that of the parts.
  std::int64_t whole = 0;      // Size of the whole along it.
  const char* name = "";       // "the all-gather behind piece 0 of layer "fc""; never ends.
  Waits waits = Waits::Aside;
};

// An exchange that a rank has started.
class StartedExchange {
 public:
  virtual ~StartedExchange() = default;
  // What it gives this rank, in memory of its own.  Once.
  // Throws: CommError as transfers do.
  virtual at::Tensor await() = 0;
};

class Exchanges {
 public:
  virtual ~Exchanges() = default;
  // This rank among those that share.
  virtual const partition::Share& share() const = 0;
  // Begins an exchange; `value` stays as it is until that is over.  Every rank that shares calls
  // it, in the same order, with the same question.  What a device computes meanwhile hides it.
  // Throws: CommError as transfers do.
  virtual std::unique_ptr<StartedExchange> start(const AskedExchange& asked,
                                                 const at::Tensor& value) = 0;
  at::Tensor run(const AskedExchange& asked, const at::Tensor& value) {
    return start(asked, value)->await();
  }
  // The sum of what the ranks give: the size of a whole, of that of the parts.
  virtual std::int64_t sum(std::int64_t part, const char* name) = 0;
};

}  // namespace penstock::stage
