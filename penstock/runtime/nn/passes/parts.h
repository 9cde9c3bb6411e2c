// Passes on several threads: each takes a part of the rows, with the bits of the whole.
//
// passes.h computes by it.  Sums over rows are of all rows, so threads share the columns of these.
// Thread safety: as the pass's.
#pragma once
#include <cstdint>
#include <functional>

#include "penstock/runtime/nn/passes/kernels.h"

namespace penstock::nn::passes {

// Calls `compute` with [0, units) in parts, on torch's threads; with all of it where the calling
// thread is the only one, or the work is too small to share.
void in_parts(std::int64_t units, std::int64_t elements_of_unit,
              const std::function<void(std::int64_t first, std::int64_t last)>& compute);

template <class Rows>
using Kernel = void (*)(const Rows&);

void compute(Kernel<NormRows> kernel, const NormRows& all);
void compute(Kernel<NormGradientRows> kernel, const NormGradientRows& all);
void compute(Kernel<Rotation> kernel, const Rotation& all);
void compute(Kernel<Gate> kernel, const Gate& all);
void compute(Kernel<GateGradient> kernel, const GateGradient& all);
void compute(Kernel<LossRows> kernel, const LossRows& all);
void compute(Kernel<LossGradientRows> kernel, const LossGradientRows& all);
void compute(Kernel<AddedRows> kernel, const AddedRows& all);

}  // namespace penstock::nn::passes
