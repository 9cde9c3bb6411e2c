#include "penstock/runtime/stage/segment_parts.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/runtime/stage/cut.h"

namespace penstock::stage {
namespace {

c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

bool shares_memory(const at::Tensor& tensor, const nn::Values& values) {
  return std::ranges::any_of(values, [&](const at::Tensor& each) {
    return each.defined() && each.has_storage() && memory_of(each) == memory_of(tensor);
  });
}

void let_go(const at::Tensor& tensor) {
  c10::StorageImpl* const memory = memory_of(tensor);
  memory->set_data_ptr_noswap(at::DataPtr(nullptr, memory->device()));
  memory->set_nbytes(std::size_t{0});
}

// Gives `tensor`, which has none, the memory of another one of the same bytes.
void take_memory(const at::Tensor& tensor, at::Tensor other) {
  PENSTOCK_CHECK(tensor.sizes() == other.sizes() && other.is_contiguous() &&
                     other.storage_offset() == 0 && tensor.storage_offset() == 0,
                 tensor.sizes(), " and ", other.sizes());
  c10::StorageImpl* const memory = memory_of(tensor);
  const std::size_t bytes = memory_of(other)->nbytes();
  memory->set_data_ptr_noswap(
      memory_of(other)->set_data_ptr(at::DataPtr(nullptr, memory->device())));
  memory->set_nbytes(bytes);
  let_go(other);
}

// The inputs that were gathered behind the part before.  `given`: what that part gave.
std::vector<GatheredInput> gathered_inputs(const Border& ahead, const nn::Values& given,
                                           const nn::Values& inputs) {
  std::vector<GatheredInput> all;
  for (const std::size_t value : ahead.gathered()) {
    all.push_back({.value = value,
                   .gathered = inputs[value].variable_data(),
                   .part = given[value].variable_data()});
  }
  return all;
}

// Starts the second gathers of a part's inputs, if they have not started.
void gather_again(KeptParts& kept, std::size_t part) {
  for (GatheredInput& each : kept.parts[part].gathered) {
    if (each.again) continue;
    each.again = (*kept.borders)[part - 1].gather_again(each.value, each.part, kept.sizes);
  }
}

// `behind`: gradients of what is behind the part's exchanges.
void start_gradients(KeptParts& kept, std::size_t part, nn::Values behind) {
  const nn::Values& outputs = kept.parts[part].outputs;
  behind.resize(outputs.size());  // A loss in pieces has given those of its targets, too.
  kept.gradients = (*kept.borders)[part].start_gradients(std::move(behind), outputs, kept.sizes);
}

}  // namespace

nn::Values without_memory(const nn::Values& outputs) {
  nn::Values results(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& output = outputs[i];
    if (!output.defined()) continue;
    results[i] =
        at::empty({1}, output.options().requires_grad(false)).expand(output.sizes()).detach();
    if (!output.requires_grad()) continue;
    torch::autograd::impl::set_gradient_edge(results[i],
                                             torch::autograd::impl::gradient_edge(output));
  }
  return results;
}

nn::Values run_with_graphs(const std::shared_ptr<const Borders>& all, const nn::Values& inputs,
                           const RunPart& run, Graphs graphs, KeptParts& kept) {
  const Borders& borders = *all;
  kept.borders = all;
  nn::Values values = inputs;
  std::vector<GatheredInput> gathered;
  for (std::size_t k = 0; k < borders.size(); ++k) {
    KeptPart& part = kept.parts.emplace_back();
    nn::Values given;
    {
      Cut cut = cut_off(values);
      part.leaves = std::move(cut.leaves);
      given = run(k, cut.values, part.marks);
    }
    // The first part's leaves are the caller's values, which may be kept elsewhere in any case.
    if (k > 0) empty(part.leaves);
    values.clear();
    for (GatheredInput& each : gathered) {
      if (graphs == Graphs::ForNow || shares_memory(each.gathered, given)) continue;
      let_go(each.gathered);
      part.gathered.push_back(std::move(each));
    }
    gathered.clear();
    const bool is_last = k + 1 == borders.size();
    if (is_last && (!borders[k].exchanges() || graphs == Graphs::ForNow)) {
      part.outputs = given;
      return given;
    }
    values = borders[k].exchanged(given, kept.sizes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i].defined() && values[i].is_same(given[i])) values[i] = detached({given[i]})[0];
    }
    if (!is_last) gathered = gathered_inputs(borders[k], given, values);
    part.outputs = without_memory(given);
  }
  return values;
}

nn::Values begin_backward(KeptParts& kept, std::size_t part, nn::Values behind) {
  if (kept.borders == nullptr) return behind;
  gather_again(kept, part);
  if (!kept.gradients) start_gradients(kept, part, std::move(behind));
  nn::Values gradients = kept.gradients->await();
  kept.gradients.reset();
  for (GatheredInput& each : kept.parts[part].gathered) {
    take_memory(each.gathered, each.again->await());
  }
  kept.parts[part].gathered.clear();
  if (part > 0) gather_again(kept, part - 1);
  return gradients;
}

bool sends_gradients(const KeptParts& kept, std::size_t part) {
  return part > 0 && (*kept.borders)[part - 1].sends_gradients();
}

nn::Values hand_back(KeptParts& kept, std::size_t part, nn::Values gradients) {
  if (part == 0) return gradients;
  start_gradients(kept, part - 1, std::move(gradients));
  return {};
}

}  // namespace penstock::stage
