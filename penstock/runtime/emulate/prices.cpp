#include "penstock/runtime/emulate/prices.h"

#include <algorithm>
#include <array>

namespace penstock::emulate {
namespace {

// Two operations for each of m x n x k.
std::int64_t operations(const at::Tensor& a, const at::Tensor& b) {
  return 2 * a.numel() * b.size(-1);
}

// A dimension that is expanded is read once.
std::int64_t bytes_of(const at::Tensor& tensor) {
  std::int64_t elements = 1;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) != 0) elements *= tensor.size(i);
  }
  return tensor.numel() == 0 ? 0 : elements * static_cast<std::int64_t>(tensor.element_size());
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

Kernel kernel_of(std::string_view name, const std::vector<at::Tensor>& reads,
                 const std::vector<at::Tensor>& writes) {
  const int matrix = first_matrix(name);
  if (matrix >= 0 && std::ssize(reads) >= matrix + 2) {
    const auto first = static_cast<std::size_t>(matrix);
    const bool is_short = at::isReducedFloatingType(reads[first].scalar_type());
    return {.kind = is_short ? KernelKind::ShortProduct : KernelKind::Product,
            .amount = operations(reads[first], reads[first + 1])};
  }
  // A table is read, or written, as far as the other tensors go.
  const bool has_table = touches_part(name) && !reads.empty();
  std::int64_t bytes = 0;
  for (const std::vector<at::Tensor>* const tensors : {&reads, &writes}) {
    for (const at::Tensor& each : *tensors) {
      if (!has_table || !each.is_same(reads.front())) bytes += bytes_of(each);
    }
  }
  if (has_table) bytes *= 2;
  return {.kind = KernelKind::Other, .amount = bytes};
}

Kernel processor_kernel_of(std::string_view name, const std::vector<at::Tensor>& reads,
                           const std::vector<at::Tensor>& writes) {
  const auto without_doubles = [](std::vector<at::Tensor> tensors) {
    std::erase_if(tensors,
                  [](const at::Tensor& each) { return each.scalar_type() == at::kDouble; });
    return tensors;
  };
  return kernel_of(name, without_doubles(reads), without_doubles(writes));
}

Kernel kernel_of_attention(const at::Tensor& queries, const at::Tensor& keys, bool is_causal,
                           bool is_backward) {
  const std::int64_t forward = 4 * queries.numel() * keys.size(-2) / (is_causal ? 2 : 1);
  const bool is_short = at::isReducedFloatingType(queries.scalar_type());
  if (!is_backward) {
    return {.kind = is_short ? KernelKind::ShortAttention : KernelKind::Attention,
            .amount = forward};
  }
  return {.kind = is_short ? KernelKind::ShortAttentionBackward : KernelKind::AttentionBackward,
          .amount = 5 * forward / 2};
}

}  // namespace penstock::emulate
