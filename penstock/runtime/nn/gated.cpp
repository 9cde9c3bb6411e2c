#include "penstock/runtime/nn/gated.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "penstock/runtime/nn/own_backward.h"
#include "penstock/runtime/nn/passes/passes.h"

namespace penstock::nn {
namespace {

bool can_pass(const at::Tensor& gate, const at::Tensor& up) {
  return passes::can_fuse({gate, up}) && gate.sizes() == up.sizes();
}

}  // namespace

at::Tensor gated_values(const at::Tensor& gate, const at::Tensor& up) {
  const at::NoGradGuard no_grad;
  if (!can_pass(gate, up)) return at::silu(gate) * up;
  at::Tensor output = at::empty_like(gate);
  run(passes::kGate,
      [&] {
        return passes::Gate{.gate = passes::floats(gate),
                            .up = passes::floats(up),
                            .output = passes::floats(output),
                            .elements = gate.numel()};
      },
      {gate, up}, {output});
  return output;
}

std::pair<at::Tensor, at::Tensor> gradients_of_gated(const at::Tensor& gradient,
                                                     const at::Tensor& gate, const at::Tensor& up) {
  const at::NoGradGuard no_grad;
  if (!can_pass(gate, up)) {
    return {at::silu_backward(gradient * up, gate), gradient * at::silu(gate)};
  }
  const bool reuses = passes::nobody_else_reads(gradient);
  const at::Tensor dense = gradient.contiguous();
  at::Tensor of_gate = at::empty_like(gate), of_up = reuses ? dense : at::empty_like(up);
  run(passes::kGateGradient,
      [&] {
        return passes::GateGradient{.gradient = passes::floats(dense),
                                    .gate = passes::floats(gate),
                                    .up = passes::floats(up),
                                    .of_gate = passes::floats(of_gate),
                                    .of_up = passes::floats(of_up),
                                    .elements = gate.numel()};
      },
      {dense, gate, up}, {of_gate, of_up});
  return {std::move(of_gate), std::move(of_up)};
}

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up) {
  if (!can_pass(gate, up)) return at::silu(gate) * up;
  const at::Tensor kept_gate = gate.detach(), kept_up = up.detach();
  return with_own_backward({gated_values(kept_gate, kept_up)}, {gate, up}, {},
                           {.of_inputs =
                                [kept_gate, kept_up](const Tensors& gradients) {
                                  auto [of_gate, of_up] =
                                      gradients_of_gated(gradients[0], kept_gate, kept_up);
                                  return Tensors{std::move(of_gate), std::move(of_up)};
                                },
                            .of_weights = [](const Tensors&) { return Tensors(); }})
      .front();
}

}  // namespace penstock::nn
