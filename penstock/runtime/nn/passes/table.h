// The passes as the including file's flags compile them: default.cpp, avx2.cpp and avx512.cpp have
// one table each.
//
// Nothing here has a name outside of its file, so no processor runs another one's instructions.
#pragma once
#include "penstock/runtime/nn/passes/added_rows.h"
#include "penstock/runtime/nn/passes/attention.h"
#include "penstock/runtime/nn/passes/gate.h"
#include "penstock/runtime/nn/passes/loss_rows.h"
#include "penstock/runtime/nn/passes/norm_rows.h"
#include "penstock/runtime/nn/passes/rotation.h"

namespace penstock::nn::passes {
namespace {

constexpr Kernels kOfThisFile = {.norm = norm,
                                 .norm_gradient = norm_gradient,
                                 .rotate = rotate,
                                 .gate = gate,
                                 .gate_gradient = gate_gradient,
                                 .loss = loss,
                                 .loss_gradient = loss_gradient,
                                 .add_rows = add_rows,
                                 .attend = attend,
                                 .attention_gradient = attention_gradient};

}  // namespace
}  // namespace penstock::nn::passes
