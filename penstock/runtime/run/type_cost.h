// What a short type costs where the processor computes it without instructions of its own.
//
// A run says it once, at its start.  Torch gives products of bf16 and fp16 to oneDNN where the
// processor has instructions for them (avx512_bf16, amx); elsewhere they are slower than floats.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace penstock::run {

// A sentence with the times of a product in `type` and in float; absent where `type` is not slower,
// or `device` is not the host.  Takes some milliseconds.
std::optional<std::string> cost_of_type(at::ScalarType type, c10::Device device);

}  // namespace penstock::run
