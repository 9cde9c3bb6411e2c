#include "penstock/runtime/train/facts.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <c10/core/DefaultDtype.h>
#include <torch/version.h>

#include <array>
#include <cstdlib>

#include "penstock/core/content_hash.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"
#include "penstock/runtime/nn/host_products.h"

namespace penstock::train {

using agreement::Fact;

namespace {

// Variables that change what kernels give, by the pages of torch, oneDNN, MKL and CUDA.
constexpr std::array kVariables = {"CUBLAS_WORKSPACE_CONFIG",
                                   "DNNL_DEFAULT_FPMATH_MODE",
                                   "DNNL_MAX_CPU_ISA",
                                   "MKL_CBWR",
                                   "MKL_ENABLE_INSTRUCTIONS",
                                   "NVIDIA_TF32_OVERRIDE",
                                   "ONEDNN_DEFAULT_FPMATH_MODE",
                                   "ONEDNN_MAX_CPU_ISA",
                                   "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"};

std::string environment() {
  std::vector<std::string> set;
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    if (value != nullptr) set.push_back(str(name, "=", value));
  }
  return set.empty() ? "none that matters" : join(set, " ");
}

std::string determinism(const at::Context& context) {
  if (!context.deterministicAlgorithms()) return "not asked for";
  return context.deterministicAlgorithmsWarnOnly() ? "warned of" : "asked for";
}

// "ieee" or "tf32", say, of products of matrices and of convolutions.
std::string float_precision(const at::Context& context) {
  std::vector<std::string> all;
  for (const auto backend : {at::Float32Backend::CUDA, at::Float32Backend::MKLDNN}) {
    for (const auto op : {at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN}) {
      all.push_back(at::precision2str(context.float32Precision(backend, op)));
    }
  }
  return join(all, " ");
}

std::string cuda_sums(const at::Context& context) {
  return str("fp16 ", static_cast<int>(context.allowFP16ReductionCuBLAS()), ", bf16 ",
             static_cast<int>(context.allowBF16ReductionCuBLAS()), ", fp16 accumulation ",
             context.allowFP16AccumulationCuBLAS() ? "on" : "off");
}

std::string cudnn(const at::Context& context) {
  return str(context.userEnabledCuDNN() ? "on" : "off", ", benchmark ",
             context.benchmarkCuDNN() ? "on" : "off", ", deterministic ",
             context.deterministicCuDNN() ? "on" : "off");
}

// One step of either optimizer, on values of many sizes, some of them subnormal.
std::string hash_of_updates() {
  const at::NoGradGuard no_grad;
  constexpr std::int64_t kElements = 1003;  // No multiple of any vector's length.
  const auto options = at::TensorOptions(at::kFloat).device(at::kCPU);
  const at::Tensor number = at::arange(1, kElements + 1, options);
  const auto values = [&](double scale) { return (number * scale).frac() - 0.5; };
  at::Tensor parameter = values(0.6180339887), gradient = values(0.7548776662) * 1e-3;
  at::Tensor average = values(0.5698402910) * 1e-3, square = values(0.8191725134).abs() * 1e-6;
  gradient.narrow(0, 0, 100).mul_(1e-38);
  average.narrow(0, 50, 100).mul_(1e-38);
  const at::Tensor momentum = average.clone(), by_sgd = parameter.clone();
  at::_fused_adamw_({parameter}, {gradient}, {average}, {square}, at::TensorList{},
                    {at::tensor(3.0F, options)}, /*lr=*/1e-3, /*beta1=*/0.9, /*beta2=*/0.999,
                    /*weight_decay=*/0.01, /*eps=*/1e-8, /*amsgrad=*/false, /*maximize=*/false);
  at::_fused_sgd_({by_sgd}, {gradient}, {momentum}, /*weight_decay=*/0.01, /*momentum=*/0.9,
                  /*lr=*/1e-2, /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                  /*is_first_step=*/false);
  std::string bytes;
  for (const at::Tensor& each : {parameter, average, square, by_sgd, momentum}) {
    bytes.append(static_cast<const char*>(each.const_data_ptr()), each.nbytes());
  }
  return content_hash(bytes);
}

// Takes a product that oneDNN may compute, forward and of a weight, and one that is too small.
std::string hash_of_products() {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions(at::kFloat).device(at::kCPU);
  const auto values = [&](std::int64_t rows, std::int64_t columns, double scale) {
    return ((at::arange(rows * columns, options) * scale).frac() - 0.5).view({rows, columns});
  };
  std::string bytes;
  for (const std::int64_t width : {64, 256}) {
    const at::Tensor x = values(256, width, 0.6180339887), w = values(width, width, 0.7548776662);
    for (const at::Tensor& each : {nn::product(x, w.t()), nn::product(x.t(), x)}) {
      bytes.append(static_cast<const char*>(each.const_data_ptr()), each.nbytes());
    }
  }
  return content_hash(bytes);
}

}  // namespace

Facts facts_of_process() {
  const at::Context& context = at::globalContext();
  return {{Fact::PenstockVersion, kVersion},
          {Fact::TorchVersion, TORCH_VERSION},
          {Fact::DefaultDtype, c10::toString(c10::get_default_dtype_as_scalartype())},
          {Fact::DeterministicAlgorithms, determinism(context)},
          {Fact::Float32Precision, float_precision(context)},
          {Fact::SumsOfCublas, cuda_sums(context)},
          {Fact::Cudnn, cudnn(context)},
          {Fact::Onednn, context.userEnabledMkldnn() ? "on" : "off"},
          {Fact::Environment, environment()}};
}

Facts facts_of_host_updates() { return {{Fact::BitsOfUpdate, hash_of_updates()}}; }

Facts facts_of_bits() {
  return {{Fact::Threads, str(at::get_num_threads())},
          {Fact::CpuKernels, str(at::get_cpu_capability(), ", products ", hash_of_products())}};
}

}  // namespace penstock::train
