// The passes for AVX2 and FMA; cmake/passes.cmake has the flags.
#include "penstock/runtime/nn/passes/gate.h"
#include "penstock/runtime/nn/passes/loss_rows.h"
#include "penstock/runtime/nn/passes/norm_rows.h"
#include "penstock/runtime/nn/passes/rotation.h"

namespace penstock::nn::passes {

const Kernels kAvx2Kernels = {.norm = norm,
                              .norm_gradient = norm_gradient,
                              .rotate = rotate,
                              .gate = gate,
                              .gate_gradient = gate_gradient,
                              .loss = loss,
                              .loss_gradient = loss_gradient};

}  // namespace penstock::nn::passes
