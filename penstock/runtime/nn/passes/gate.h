// silu(gate) x up, and its gradients.
//
// The plain version is in nn/gated.cpp; exponentials are ATen's.
#pragma once
#include "penstock/runtime/nn/passes/kernels.h"
#include "penstock/runtime/nn/passes/vectors.h"

namespace penstock::nn::passes {
namespace {

inline void gate(const Gate& of) {
  const Vector one(1.0F);
  by_vectors(of.elements, [&](auto i, auto count) {
    const Vector x = load(of.gate + i, count);
    store(x / (one + x.neg().exp()) * load(of.up + i, count), of.output + i, count);
  });
}

inline void gate_gradient(const GateGradient& of) {
  const Vector one(1.0F);
  by_vectors(of.elements, [&](auto i, auto count) {
    const Vector x = load(of.gate + i, count), gradient = load(of.gradient + i, count);
    const Vector beneath = one + x.neg().exp(), sigmoid = one / beneath;
    const Vector of_silu = gradient * load(of.up + i, count);
    store(of_silu * sigmoid * (one + x * (one - sigmoid)), of.of_gate + i, count);
    store(gradient * (x / beneath), of.of_up + i, count);
  });
}

}  // namespace
}  // namespace penstock::nn::passes
