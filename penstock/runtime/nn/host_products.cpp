#include "penstock/runtime/nn/host_products.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <string_view>

#include "penstock/runtime/nn/host_kernels.h"
#include "penstock/runtime/nn/passes/passes.h"

namespace at::native {

// Torch exports it, in no header that it installs.  Weak: a torch may have another one.
__attribute__((weak)) void mkldnn_matmul(const Tensor& left, const Tensor& right,
                                         const Tensor& result, float beta, float alpha);

}  // namespace at::native

namespace penstock::nn {
namespace {

// x W^T and a bias, and a function of that by name, with its arguments.
using NoArguments = c10::List<std::optional<at::Scalar>>;
using LinearOperator = at::Tensor(const at::Tensor&, const at::Tensor&,
                                  const std::optional<at::Tensor>&, std::string_view, NoArguments,
                                  std::optional<std::string_view>);

// Fewer multiplications do not pay for oneDNN's call, nor for what is asked here.
constexpr std::int64_t kLeast = std::int64_t{1} << 23;

enum class Kernels : std::uint8_t { OfTorch, Function, Operator };

const std::optional<c10::TypedOperatorHandle<LinearOperator>>& linear_operator() {
  static const auto found = [] {
    const auto op = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    return op ? std::optional(op->typed<LinearOperator>()) : std::nullopt;
  }();
  return found;
}

at::Tensor fixed_values(at::IntArrayRef sizes, double scale) {
  const at::Tensor number = at::arange(sizes[0] * sizes[1], at::dtype(at::kFloat).device(at::kCPU));
  return (number * scale).frac().sub_(0.5).view(sizes);
}

// Whether torch's function is there, takes floats on this processor, and adds whole products.
bool function_works() {
  static const bool works = [] {
    if (at::native::mkldnn_matmul == nullptr) return false;
    const at::NoGradGuard no_grad;
    const at::DisableRecordFunctionGuard unseen;
    const at::Tensor left = fixed_values({1500, 72}, 0.6180339887).t();
    const at::Tensor right = fixed_values({1500, 40}, 0.7548776662);
    const at::Tensor earlier = fixed_values({72, 40}, 0.5698402910);
    at::Tensor product = at::empty({72, 40}, left.options()), sum = earlier.clone();
    try {
      at::native::mkldnn_matmul(left, right, product, /*beta=*/0, /*alpha=*/1);
      at::native::mkldnn_matmul(left, right, sum, /*beta=*/1, /*alpha=*/1);
    } catch (const c10::Error&) {
      return false;
    }
    return sum.equal(earlier + product);
  }();
  return works;
}

Kernels kernels_of_processor() {
  static const Kernels kernels = [] {
    const std::string capability = at::get_cpu_capability();
    if (capability != "AVX2" && capability != "AVX512") return Kernels::OfTorch;
    if (function_works()) return Kernels::Function;
    return linear_operator() ? Kernels::Operator : Kernels::OfTorch;
  }();
  return kernels;
}

// The longest inner dimension that at::addmm_() is seen to go through in one piece.
std::int64_t most_in_one_piece() {
  static const std::int64_t most = [] {
    const at::NoGradGuard no_grad;
    const at::DisableRecordFunctionGuard unseen;
    for (const std::int64_t inner : {512, 384, 256, 192, 128, 64, 32}) {
      const auto is_whole = [&](std::int64_t rows, std::int64_t columns) {
        const at::Tensor left = fixed_values({inner, rows}, 0.6180339887).t();
        const at::Tensor right = fixed_values({inner, columns}, 0.7548776662);
        const at::Tensor earlier = fixed_values({rows, columns}, 0.5698402910);
        return earlier.addmm(left, right).equal(earlier + at::mm(left, right));
      };
      if (is_whole(72, 40) && is_whole(256, 512) && is_whole(520, 250)) return inner;
    }
    return std::int64_t{0};
  }();
  return most;
}

// Floats of the host, or of a virtual device that chooses as the host would, and enough of them.
bool is_worth_it(const at::Tensor& left, const at::Tensor& right) {
  const auto is_floats = [](const at::Tensor& each) {
    return each.scalar_type() == at::kFloat && uses_host_kernels(each);
  };
  return is_floats(left) && is_floats(right) &&
         left.size(0) * left.size(1) * right.size(1) >= kLeast;
}

Kernels kernels_for(const at::Tensor& left, const at::Tensor& right) {
  if (!is_worth_it(left, right)) return Kernels::OfTorch;
  if (!at::globalContext().userEnabledMkldnn()) return Kernels::OfTorch;
  const Kernels kernels = kernels_of_processor();
  // The operator would copy it.
  const bool is_copied = kernels == Kernels::Operator && !left.is_contiguous();
  return is_copied ? Kernels::OfTorch : kernels;
}

bool has_memory(const at::Tensor& left, const at::Tensor& right) {
  return left.is_cpu() && right.is_cpu();
}

void multiply(const at::Tensor& left, const at::Tensor& right, const at::Tensor& result,
              float beta) {
  passes::compute_observed(
      "penstock::product", {left, right},
      [&] { at::native::mkldnn_matmul(left, right, result, beta, /*alpha=*/1); },
      {left.size(0), left.size(1), right.size(1)});
}

}  // namespace

bool has_faster_product(const at::Tensor& left, const at::Tensor& right) {
  return has_memory(left, right) && kernels_for(left, right) != Kernels::OfTorch;
}

at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  const Kernels kernels = kernels_for(left, right);
  if (kernels == Kernels::OfTorch || !has_memory(left, right)) return at::mm(left, right);
  if (kernels == Kernels::Operator) {
    return linear_operator()->call(left, right.t(), /*bias=*/std::nullopt, "none", NoArguments(),
                                   "");
  }
  at::Tensor result = at::empty({left.size(0), right.size(1)}, left.options());
  multiply(left, right, result, /*beta=*/0);
  return result;
}

bool torch_adds_whole(const at::Tensor& left, const at::Tensor& right) {
  return is_worth_it(left, right) && left.size(1) <= most_in_one_piece();
}

bool adds_in_place(const at::Tensor& left, const at::Tensor& right) {
  const Kernels kernels = kernels_for(left, right);
  if (kernels == Kernels::OfTorch) return torch_adds_whole(left, right);
  return kernels == Kernels::Function;
}

void add_product(at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  if (!adds_in_place(left, right)) {
    sum.add_(product(left, right));
  } else if (has_memory(left, right) && kernels_for(left, right) == Kernels::Function) {
    multiply(left, right, sum, /*beta=*/1);
  } else {
    sum.addmm_(left, right);
  }
}

}  // namespace penstock::nn
