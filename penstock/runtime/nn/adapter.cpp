#include "penstock/runtime/nn/adapter.h"

#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>
#include <regex>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::nn {

bool AdapterOptions::adapts(const std::string& linear) const {
  try {
    return std::regex_match(linear, std::regex(targets));
  } catch (const std::regex_error& error) {
    throw ConfigError(penstock::str("model.adapter.targets = ", in_quotes(targets),
                                    ": no regular expression: ", error.what()));
  }
}

bool is_of_adapter(std::string_view parameter) {
  return parameter.find(penstock::str(".", kAdapterIn, ".")) != std::string_view::npos ||
         parameter.find(penstock::str(".", kAdapterOut, ".")) != std::string_view::npos;
}

void fill_adapter(std::string_view name, at::Tensor& parameter) {
  const torch::NoGradGuard no_grad;
  if (name.find(penstock::str(".", kAdapterOut, ".")) != std::string_view::npos) {
    parameter.zero_();
    return;
  }
  const double bound = 1.0 / std::sqrt(static_cast<double>(parameter.size(1)));
  parameter.uniform_(-bound, bound);
}

at::Tensor merged(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                  const AdapterOptions& options, bool is_in_out) {
  const torch::NoGradGuard no_grad;
  const at::Tensor product = at::mm(b.to(at::kFloat), a.to(at::kFloat)) * options.scale();
  return weight.to(at::kFloat) + (is_in_out ? product.t() : product);
}

}  // namespace penstock::nn
