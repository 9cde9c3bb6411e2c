// Whether layers compute by the fused passes of this folder, or by torch's operators; and which
// tensors a pass may write over.
//
// The only place that chooses.  Passes take dense floats on processors; all else, short types on
// processors too, is computed by the operators.  Knows no layers.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "penstock/runtime/nn/passes/kernels.h"
#include "penstock/runtime/nn/passes/parts.h"

namespace penstock::nn::passes {

// While one lives, this thread's layers compute by torch's operators: the passes' reference.
class Plain {
 public:
  Plain();
  ~Plain();
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;
};

// Whether a pass takes values of this tensor, whatever its strides.
bool can_take(const at::Tensor& tensor);
// Whether passes compute on these tensors.
bool can_fuse(std::initializer_list<std::reference_wrapper<const at::Tensor>> tensors);

template <class Rows>
struct Pass {
  const char* name;
  void (*Kernels::*kernel)(const Rows&);
};
inline constexpr Pass<NormRows> kNorm{"penstock::norm", &Kernels::norm};
inline constexpr Pass<NormGradientRows> kNormGradient{"penstock::norm_gradient",
                                                      &Kernels::norm_gradient};
inline constexpr Pass<Rotation> kRotate{"penstock::rotate", &Kernels::rotate};
inline constexpr Pass<Gate> kGate{"penstock::gate", &Kernels::gate};
inline constexpr Pass<GateGradient> kGateGradient{"penstock::gate_gradient",
                                                  &Kernels::gate_gradient};
inline constexpr Pass<LossRows> kLoss{"penstock::loss", &Kernels::loss};
inline constexpr Pass<LossGradientRows> kLossGradient{"penstock::loss_gradient",
                                                      &Kernels::loss_gradient};
// Attention by blocks (nn/host_attention.h), by heads: reads queries and keys first; its gradient
// reads the output's before these.
inline constexpr const char* kAttention = "penstock::attention";
inline constexpr const char* kAttentionGradient = "penstock::attention_gradient";
inline constexpr Pass<AddedRows> kAddRows{"penstock::add_rows", &Kernels::add_rows};

// Computes between what observers of torch's operators do before one and behind it: some bring
// parameters that are away (parameters/pager.h).  `product`: its rows, inner size and columns.
void compute_observed(const char* pass, const std::vector<at::Tensor>& reads,
                      const std::function<void()>& compute,
                      std::initializer_list<std::int64_t> product = {});
void tell(std::string_view pass, const std::vector<at::Tensor>& reads,
          const std::vector<at::Tensor>& writes);

// Runs a pass on what `rows` gives; on tensors without memory, tells of it (host_kernels.h).
template <class Rows, class MakeRows>
void run(const Pass<Rows>& pass, const MakeRows& rows, const std::vector<at::Tensor>& reads,
         const std::vector<at::Tensor>& writes) {
  if (reads.front().is_cpu()) {
    compute_observed(pass.name, reads, [&] { compute(kernels().*pass.kernel, rows()); });
  } else {
    tell(pass.name, reads, writes);
  }
}

// The memory of dense floats; null of an undefined tensor, and of one that has none.
float* floats(const at::Tensor& tensor);
const std::int64_t* numbers(const at::Tensor& tensor);

// Whether nothing but this handle leads to the memory of a dense tensor.
bool nobody_else_reads(const at::Tensor& tensor);

}  // namespace penstock::nn::passes
