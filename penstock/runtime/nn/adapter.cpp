#include "penstock/runtime/nn/adapter.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>
#include <regex>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::nn {
namespace {

std::regex pattern_of(const char* key, const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& error) {
    throw ConfigError(penstock::str("model.adapter.", key, " = ", in_quotes(text),
                                    ": no regular expression: ", error.what()));
  }
}

// The number of the first pattern that is the end of the name, from a dot on, as PEFT's
// get_pattern_key() takes it.
template <class Number>
Number number_for(const char* key, const ByLinear<Number>& numbers, const std::string& linear,
                  Number others) {
  for (const auto& [name, number] : numbers) {
    const std::string whole = penstock::str("(?:.*\\.)?(?:", name, ")");
    if (std::regex_match(linear, pattern_of(key, whole))) return number;
  }
  return others;
}

template <class Draw>
void fill(std::string_view name, at::Tensor& parameter, const Draw& draw) {
  const torch::NoGradGuard no_grad;
  if (is_within(kAdapterOut, name)) {
    parameter.zero_();
  } else if (is_within(kAdapterIn, name)) {
    draw();
  }
}

}  // namespace

bool AdapterOptions::adapts(const std::string& linear) const {
  return targets == kAllLinears || std::regex_match(linear, pattern_of("targets", targets));
}

std::int64_t AdapterOptions::rank_of(const std::string& linear) const {
  return number_for("rank_pattern", ranks, linear, rank);
}

double AdapterOptions::scale_of(const std::string& linear) const {
  const auto width = static_cast<double>(rank_of(linear));
  const double own = number_for("alpha_pattern", alphas, linear, alpha);
  return own / (is_rank_stabilized ? std::sqrt(width) : width);
}

bool AdapterOptions::trains(const std::string& parameter) const {
  if (is_of_adapter(parameter)) return true;
  if (trained.empty()) return false;
  return std::regex_match(module_of(parameter), pattern_of("modules_to_save", trained));
}

void fill_adapter(std::string_view name, at::Tensor& parameter) {
  fill(name, parameter, [&] {
    const double bound = 1.0 / std::sqrt(static_cast<double>(parameter.size(1)));
    parameter.uniform_(-bound, bound);
  });
}

void fill_adapter_normally(std::string_view name, at::Tensor& parameter) {
  fill(name, parameter,
       [&] { parameter.normal_(0.0, 1.0 / static_cast<double>(parameter.size(0))); });
}

at::Tensor lengths_of_rows(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                           double scale) {
  const torch::NoGradGuard no_grad;
  return at::linalg_vector_norm(weight + at::mm(b, a) * scale, 2, {1});
}

at::Tensor merged(const at::Tensor& weight, const AdapterTensors& adapter, double scale,
                  bool is_in_out) {
  const torch::NoGradGuard no_grad;
  const at::Tensor in = adapter.in.to(at::kFloat), out = adapter.out.to(at::kFloat);
  const at::Tensor before = (is_in_out ? weight.t() : weight).to(at::kFloat);
  at::Tensor sum = before + at::mm(out, in) * scale;
  if (adapter.lengths.defined()) {
    const at::Tensor lengths = at::linalg_vector_norm(sum, 2, {1});
    sum = sum * (adapter.lengths.to(at::kFloat) / lengths).unsqueeze(1);
  }
  return is_in_out ? sum.t().contiguous() : sum;
}

}  // namespace penstock::nn
