// What a stage asks of the ranks that share its layers with it: exchanges of values.
//
// border.h asks, execute/group_exchanges.h answers.  Knows no layers.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "penstock/plan/exchange/exchange.h"
#include "penstock/plan/partition/cut.h"

namespace penstock::stage {

struct AskedExchange {
  exchange::Action action;     // One that sends.
  std::int64_t dimension = 0;  // AllGather and ReduceScatter: that of the parts.
  std::int64_t whole = 0;      // Size of the whole along it.
  const char* name = "";       // "the all-gather behind piece 0 of layer "fc""; never ends.
};

class Exchanges {
 public:
  virtual ~Exchanges() = default;
  // This rank among those that share.
  virtual const partition::Share& share() const = 0;
  // What the exchange gives this rank, in memory of its own.  Every rank that shares calls it, in
  // the same order, with the same question.
  // Throws: CommError as transfers do.
  virtual at::Tensor run(const AskedExchange& asked, const at::Tensor& value) = 0;
  // The sum of what the ranks give: the size of a whole, of that of the parts.
  virtual std::int64_t sum(std::int64_t part, const char* name) = 0;
};

}  // namespace penstock::stage
