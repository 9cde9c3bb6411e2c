#include "penstock/plan/memory/token_shares.h"

#include <algorithm>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::memory {
namespace {

bool is_attention(devices::KernelKind kind) {
  switch (kind) {
    case devices::KernelKind::Attention:
    case devices::KernelKind::ShortAttention:
    case devices::KernelKind::AttentionBackward:
    case devices::KernelKind::ShortAttentionBackward:
      return true;
    case devices::KernelKind::Product:
    case devices::KernelKind::ShortProduct:
    case devices::KernelKind::Other:
      break;
  }
  return false;
}

// Pairs of s / c tokens alone are s^2 / c^2 pairs; of s tokens, each of c ranks has s^2 / c.
void widen(std::int64_t context, devices::Kernels& kernels) {
  devices::Kernels wider;
  for (const auto& [kernel, count] : kernels) {
    devices::Kernel each = kernel;
    if (is_attention(each.kind)) each.amount *= context;
    wider[each] += count;
  }
  kernels = std::move(wider);
}

bool has_attention(const devices::Kernels& kernels) {
  return std::ranges::any_of(kernels,
                             [](const auto& each) { return is_attention(each.first.kind); });
}

}  // namespace

bool can_share_tokens(std::int64_t tokens, std::int64_t ranks) {
  return ranks == 1 || (tokens > 0 && tokens % (2 * ranks) == 0);
}

ExchangeWay context_way(std::string_view name) {
  return name == "ring" ? ExchangeWay::Ring : ExchangeWay::Gather;
}

void share_tokens(std::int64_t context, std::int64_t keys_values, ExchangeWay way,
                  LayerMemory& layer) {
  PENSTOCK_CHECK(way == ExchangeWay::Gather || way == ExchangeWay::Ring);
  if (context == 1 || !has_attention(layer.forward_kernels)) return;
  for (devices::Kernels* const kernels : {&layer.forward_kernels, &layer.backward_kernels,
                                          &layer.input_kernels, &layer.weight_kernels}) {
    widen(context, *kernels);
  }
  for (devices::Pass* const pass : {&layer.forward_pass, &layer.backward_pass, &layer.input_pass}) {
    for (devices::PassStep& step : *pass) widen(context, step.kernels);
  }
  // Gradients take as much as what they are of: they come back in one more exchange, or go along.
  const bool is_ring = way == ExchangeWay::Ring;
  layer.exchanges.push_back({.group = LayerGroup::Context,
                             .way = way,
                             .forward_bytes = keys_values,
                             .forward_count = 1,
                             .backward_bytes = is_ring ? 2 * keys_values : keys_values,
                             .backward_count = is_ring ? 1 : 2});
  // Others' parts, and gradients of all; or a part that comes, with its gradient's two.
  const std::int64_t forward = is_ring ? keys_values : (context - 1) * keys_values;
  const std::int64_t backward = is_ring ? 3 * keys_values : (2 * context - 1) * keys_values;
  layer.forward_peak += forward;
  layer.plain_forward_peak += forward;
  layer.input_peak += backward;
  layer.backward_peak.first += backward;
  layer.backward_peak.later += backward;
}

}  // namespace penstock::memory
