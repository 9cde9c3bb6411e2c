// What a kernel costs: its kind of work, operations and seconds, by the shapes of its tensors.
//
// Products are priced by their operations, all else by the bytes that it reads and writes once.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "penstock/runtime/emulate/virtual_rank.h"

namespace penstock::emulate {

struct Price {
  Work work = Work::Other;
  double seconds = 0;
  double flops = 0;
};

// Price of an operator by name, "aten::mm", with the tensors that it reads and writes.
Price price_of(std::string_view name, const std::vector<at::Tensor>& reads,
               const std::vector<at::Tensor>& writes, const devices::DeviceModel& device);

// Price of attention with these queries and keys, forward or backward; causal attention has half of
// the operations.
Price price_of_attention(const at::Tensor& queries, const at::Tensor& keys, bool is_causal,
                         bool is_backward, const devices::DeviceModel& device);

}  // namespace penstock::emulate
