#include "penstock/runtime/run/type_cost.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "penstock/core/text.h"

namespace penstock::run {
namespace {

constexpr std::int64_t kSide = 256;  // Side of the matrices that are multiplied.

constexpr int kTimes = 5;
constexpr double kSlower = 1.1;  // Less is no difference.

double milliseconds_of_product(const at::Tensor& x) {
  const auto start = std::chrono::steady_clock::now();
  at::mm(x, x);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  return took.count();
}

// The shortest times of a product in both types, which take turns; the first do not count.
std::pair<double, double> shortest_times(at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const at::Tensor other = at::full({kSide, kSide}, 0.5, at::dtype(type));
  const at::Tensor floats = at::full({kSide, kSide}, 0.5, at::dtype(at::kFloat));
  std::pair<double, double> times;
  for (int i = 0; i <= kTimes; ++i) {
    const double in_type = milliseconds_of_product(other);
    const double in_float = milliseconds_of_product(floats);
    if (i < 2) times = {in_type, in_float};
    times = {std::min(times.first, in_type), std::min(times.second, in_float)};
  }
  return times;
}

std::string tenths(double number) { return shortest(std::round(number * 10) / 10); }

}  // namespace

std::optional<std::string> cost_of_type(at::ScalarType type, c10::Device device) {
  if (!device.is_cpu() || type == at::kFloat) return std::nullopt;
  const auto [in_type, in_float] = shortest_times(type);
  if (in_type <= kSlower * in_float) return std::nullopt;
  const char* const name = type == at::kBFloat16 ? "bf16" : "fp16";
  return str("this processor has no fast instructions for ", name, ": a product of ", kSide, " x ",
             kSide, " x ", kSide, " takes ", tenths(in_type), " ms, and ", tenths(in_float),
             " ms in float; ", name, " halves memory here, and makes steps slower");
}

}  // namespace penstock::run
