#include "penstock/runtime/nn/passes/passes.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/runtime/nn/host_kernels.h"

namespace penstock::nn::passes {
namespace {

thread_local int plain = 0;  // How many Plain there are.

}  // namespace

Plain::Plain() { ++plain; }
Plain::~Plain() { --plain; }

bool can_take(const at::Tensor& tensor) {
  return plain == 0 && uses_host_kernels(tensor) && tensor.scalar_type() == at::kFloat;
}

bool can_fuse(std::initializer_list<std::reference_wrapper<const at::Tensor>> tensors) {
  return std::ranges::all_of(
      tensors, [](const at::Tensor& each) { return can_take(each) && each.is_contiguous(); });
}

void compute_observed(const char* pass, const std::vector<at::Tensor>& reads,
                      const std::function<void()>& compute,
                      std::initializer_list<std::int64_t> product) {
  std::optional<at::StepCallbacks> observers =
      at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  if (!observers) return compute();
  std::vector<c10::IValue> inputs(reads.begin(), reads.end());
  inputs.insert(inputs.end(), product.begin(), product.end());
  at::RecordFunction record(std::move(*observers));
  record.before(pass, c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
  compute();
}

void tell(std::string_view pass, const std::vector<at::Tensor>& reads,
          const std::vector<at::Tensor>& writes) {
  const HostKernels* const here = HostKernels::here();
  PENSTOCK_CHECK(here != nullptr, "a pass on a device");
  if (here->told()) here->told()(pass, reads, writes);
}

float* floats(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() ? tensor.mutable_data_ptr<float>() : nullptr;
}
const std::int64_t* numbers(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() ? tensor.const_data_ptr<std::int64_t>() : nullptr;
}

bool nobody_else_reads(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.is_contiguous() && tensor.storage().use_count() == 1;
}

}  // namespace penstock::nn::passes
