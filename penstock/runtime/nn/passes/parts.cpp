#include "penstock/runtime/nn/passes/parts.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace penstock::nn::passes {
namespace {

constexpr std::int64_t kElementsOfPart = std::int64_t{1} << 15;  // The grain of torch's own.

// Null stays null.
template <class Number>
Number* moved(Number* from, std::int64_t by) {
  return from == nullptr ? nullptr : from + by;
}

}  // namespace

// Torch's threads are behind its own loops: a program has no other way to them without OpenMP.
void in_parts(std::int64_t units, std::int64_t elements_of_unit,
              const std::function<void(std::int64_t first, std::int64_t last)>& compute) {
  const std::int64_t least =
      std::max<std::int64_t>(1, kElementsOfPart / std::max<std::int64_t>(1, elements_of_unit));
  const std::int64_t parts = std::min<std::int64_t>(at::get_num_threads(), units / least);
  if (parts < 2 || at::in_parallel_region()) return compute(0, units);
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(parts));
  std::iota(numbers.begin(), numbers.end(), 0);
  at::Tensor all = at::from_blob(numbers.data(), {parts}, at::kLong);
  at::TensorIterator loop = at::TensorIterator::nullary_op(all);
  loop.for_each(
      [&](char** data, const std::int64_t* strides, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          const auto part = *reinterpret_cast<std::int64_t*>(data[0] + i * strides[0]);
          compute(part * units / parts, (part + 1) * units / parts);
        }
      },
      /*grain_size=*/1);
}

void compute(Kernel<NormRows> kernel, const NormRows& all) {
  in_parts(all.rows, all.width, [&](std::int64_t first, std::int64_t last) {
    NormRows part = all;
    part.x = all.x + first * all.width;
    part.added = moved(all.added, first * all.width);
    part.sum = moved(all.sum, first * all.width);
    part.scales = all.scales + first;
    part.output = all.output + first * all.width;
    part.rows = last - first;
    kernel(part);
  });
}

// The sums come first: what else there is may take the place of the gradient.
void compute(Kernel<NormGradientRows> kernel, const NormGradientRows& all) {
  if (at::get_num_threads() == 1) return kernel(all);
  if (all.of_weight != nullptr) {
    in_parts(all.width, all.rows, [&](std::int64_t first, std::int64_t last) {
      NormGradientRows part = all;
      part.gradient = all.gradient + first;
      part.x = all.x + first;
      part.of_x = part.of_rows = nullptr;
      part.of_weight = all.of_weight + first;
      part.group = all.group + first;
      part.width = last - first;
      kernel(part);
    });
  }
  if (all.of_x == nullptr && all.of_rows == nullptr) return;
  in_parts(all.rows, all.width, [&](std::int64_t first, std::int64_t last) {
    NormGradientRows part = all;
    part.gradient = all.gradient + first * all.width;
    part.x = all.x + first * all.width;
    part.scales = all.scales + first;
    part.of_sum = moved(all.of_sum, first * all.width);
    part.of_x = moved(all.of_x, first * all.width);
    part.of_weight = nullptr;
    part.of_rows = moved(all.of_rows, first * all.width);
    part.rows = last - first;
    kernel(part);
  });
}

void compute(Kernel<Rotation> kernel, const Rotation& all) {
  in_parts(all.rows, all.heads * all.head_dim, [&](std::int64_t first, std::int64_t last) {
    Rotation part = all;
    part.x = all.x + first * all.row_stride;
    part.output = all.output + first * all.heads * all.head_dim;
    part.positions = moved(all.positions, first);
    part.first_row = all.first_row + first;
    part.rows = last - first;
    kernel(part);
  });
}

void compute(Kernel<Gate> kernel, const Gate& all) {
  in_parts(all.elements, 1, [&](std::int64_t first, std::int64_t last) {
    kernel({.gate = all.gate + first,
            .up = all.up + first,
            .output = all.output + first,
            .elements = last - first});
  });
}

void compute(Kernel<GateGradient> kernel, const GateGradient& all) {
  in_parts(all.elements, 1, [&](std::int64_t first, std::int64_t last) {
    kernel({.gradient = all.gradient + first,
            .gate = all.gate + first,
            .up = all.up + first,
            .of_gate = all.of_gate + first,
            .of_up = all.of_up + first,
            .elements = last - first});
  });
}

void compute(Kernel<LossRows> kernel, const LossRows& all) {
  in_parts(all.rows, all.width, [&](std::int64_t first, std::int64_t last) {
    LossRows part = all;
    part.logits = all.logits + first * all.width;
    part.targets = all.targets + first;
    part.of_targets = all.of_targets + first;
    part.log_sums = all.log_sums + first;
    part.rows = last - first;
    kernel(part);
  });
}

void compute(Kernel<LossGradientRows> kernel, const LossGradientRows& all) {
  in_parts(all.rows, all.width, [&](std::int64_t first, std::int64_t last) {
    LossGradientRows part = all;
    part.logits = all.logits + first * all.width;
    part.targets = all.targets + first;
    part.log_sums = all.log_sums + first;
    part.factors = all.factors + first;
    part.output = all.output + first * all.width;
    part.rows = last - first;
    kernel(part);
  });
}

// Rows of one number are added in their order, so threads share columns.
void compute(Kernel<AddedRows> kernel, const AddedRows& all) {
  in_parts(all.width, all.rows, [&](std::int64_t first, std::int64_t last) {
    AddedRows part = all;
    part.x = all.x + first;
    part.table = all.table + first;
    part.width = last - first;
    kernel(part);
  });
}

}  // namespace penstock::nn::passes
