// What several transfers bring, and sums of it in the order of the ranks.
//
// shard_group.h and group_messages.h add with it, so that a sum has the same bits however it is cut
// into messages, and whatever comes first.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "penstock/comm/communicator.h"

namespace penstock::comm {

// Transfers that are waited for together.
class Transfers : public Transfer {
 public:
  void add(std::unique_ptr<Transfer> transfer) { transfers_.push_back(std::move(transfer)); }
  void begin() override;
  void wait() override;
  bool is_over() override;

 private:
  std::vector<std::unique_ptr<Transfer>> transfers_;
};

// The order of summands 0, 1, 2, ...
enum class SumOrder : std::uint8_t {
  OneByOne,  // ((0 + 1) + 2) + 3
  InHalves,  // (0 + 1) + (2 + 3): those of more ranks go on with a tree that each of them began.
};

// Transfers that bring summands.
class OrderedSum : public Transfers {
 public:
  // wait() leaves in `sum` what is in `summands` then, added one after the other, from the first
  // one on.  The first one may be `sum` itself, the others not.  bf16 and fp16 are added in float,
  // and the sum is rounded once.  Halves are of summands whose number is even.
  OrderedSum(std::vector<at::Tensor> summands, at::Tensor sum, SumOrder order = SumOrder::OneByOne);
  void wait() override;

 private:
  void add_up();
  void add_halves();

  std::vector<at::Tensor> summands_;
  at::Tensor sum_;
  SumOrder order_;
};

}  // namespace penstock::comm
