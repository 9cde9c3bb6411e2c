#include "penstock/runtime/emulate/prices.h"

#include <algorithm>
#include <array>

namespace penstock::emulate {
namespace {

double peak_of(at::ScalarType type, const devices::DeviceModel& device) {
  return at::isReducedFloatingType(type) ? device.short_peak : device.float_peak;
}

// Two operations for each of m x n x k.
double operations(const at::Tensor& a, const at::Tensor& b) {
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
}

// A dimension that is expanded is read once.
double bytes_of(const at::Tensor& tensor) {
  double elements = 1;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) != 0) elements *= static_cast<double>(tensor.size(i));
  }
  return tensor.numel() == 0 ? 0 : elements * static_cast<double>(tensor.element_size());
}

// The place of a product's two matrices among what it reads; -1: it is none.
int first_matrix(std::string_view name) {
  constexpr std::array<std::string_view, 2> kPlain = {"aten::mm", "aten::bmm"};
  constexpr std::array<std::string_view, 3> kAdded = {"aten::addmm", "aten::baddbmm",
                                                      "aten::addmm_"};
  if (std::ranges::find(kPlain, name) != kPlain.end()) return 0;
  return std::ranges::find(kAdded, name) != kAdded.end() ? 1 : -1;
}

// Operators whose first tensor is a table, of which they touch some elements.
bool touches_part(std::string_view name) {
  constexpr std::array<std::string_view, 8> kAll = {
      "aten::gather",      "aten::index_select", "aten::embedding", "aten::index",
      "aten::scatter_add", "aten::scatter_add_", "aten::scatter",   "aten::scatter_"};
  return std::ranges::find(kAll, name) != kAll.end();
}

}  // namespace

Price price_of(std::string_view name, const std::vector<at::Tensor>& reads,
               const std::vector<at::Tensor>& writes, const devices::DeviceModel& device) {
  const int matrix = first_matrix(name);
  if (matrix >= 0 && std::ssize(reads) >= matrix + 2) {
    const auto first = static_cast<std::size_t>(matrix);
    const double flops = operations(reads[first], reads[first + 1]);
    const double rate = peak_of(reads[first].scalar_type(), device) * device.product_share;
    return {.work = Work::Products, .seconds = flops / rate, .flops = flops};
  }
  // A table is read, or written, as far as the other tensors go.
  const bool has_table = touches_part(name) && !reads.empty();
  double bytes = 0;
  for (const std::vector<at::Tensor>* const tensors : {&reads, &writes}) {
    for (const at::Tensor& each : *tensors) {
      if (!has_table || !each.is_same(reads.front())) bytes += bytes_of(each);
    }
  }
  if (has_table) bytes *= 2;
  return {.seconds = bytes / (device.memory_bytes_per_s * device.memory_share)};
}

Price price_of_attention(const at::Tensor& queries, const at::Tensor& keys, bool is_causal,
                         bool is_backward, const devices::DeviceModel& device) {
  const double pairs = static_cast<double>(queries.numel()) * static_cast<double>(keys.size(-2));
  const double flops = 4.0 * pairs * (is_causal ? 0.5 : 1.0) * (is_backward ? 2.5 : 1.0);
  const double share = is_backward ? device.attention_backward_share : device.attention_share;
  return {.work = Work::Attention,
          .seconds = flops / (peak_of(queries.scalar_type(), device) * share),
          .flops = flops};
}

}  // namespace penstock::emulate
