#include "penstock/runtime/nn/embedding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "penstock/runtime/nn/added_gradients.h"
#include "penstock/runtime/nn/own_backward.h"
#include "penstock/runtime/nn/passes/passes.h"

namespace penstock::nn {
namespace {

// Places of the numbers, those of one number together, in their order.
std::vector<std::int64_t> places_by_number(const at::Tensor& numbers) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(numbers.numel()));
  std::iota(places.begin(), places.end(), 0);
  const std::int64_t* const values = passes::numbers(numbers);
  std::ranges::stable_sort(places, {}, [values](std::int64_t place) { return values[place]; });
  return places;
}

// Other rows' gradient of zero changes no bit of a sum that began at zero.
void add_rows(const at::Tensor& sum, const at::Tensor& numbers, const at::Tensor& x) {
  std::vector<std::int64_t> order;
  passes::run(passes::kAddRows,
              [&] {
                order = places_by_number(numbers);
                return passes::AddedRows{.x = passes::floats(x),
                                         .numbers = passes::numbers(numbers),
                                         .order = order.data(),
                                         .table = passes::floats(sum),
                                         .rows = numbers.numel(),
                                         .stride = sum.size(1),
                                         .width = sum.size(1)};
              },
              {x, x, x}, {});  // The table's rows, read and written, are as many bytes.
}

at::Tensor gradient_of(const at::Tensor& table, const at::Tensor& numbers,
                       const at::Tensor& gradient) {
  if (!gradient.defined() || !table.requires_grad()) return {};
  const at::Tensor sum = earlier_gradient(table);
  if (!sum.defined() || !passes::can_fuse({gradient})) {
    return at::embedding_dense_backward(gradient, numbers, table.size(0), /*padding_idx=*/-1,
                                        /*scale_grad_by_freq=*/false);
  }
  add_rows(sum, numbers, gradient);
  tell_of_added(table);
  return {};
}

}  // namespace

at::Tensor rows_of_table(const at::Tensor& table, const at::Tensor& numbers) {
  if (!passes::can_take(table) || !table.is_leaf()) return at::embedding(table, numbers);
  at::Tensor rows;
  {
    const at::NoGradGuard no_grad;
    rows = at::embedding(table, numbers);
  }
  const at::Tensor kept = numbers.to(at::kLong).contiguous();
  const auto nothing = [](const Tensors& /*gradients*/) { return Tensors(); };
  const auto of_table = [table, kept](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    return Tensors{gradient_of(table, kept, gradients[0])};
  };
  return with_own_backward({rows}, {}, {table}, {.of_inputs = nothing, .of_weights = of_table})
      .front();
}

}  // namespace penstock::nn
