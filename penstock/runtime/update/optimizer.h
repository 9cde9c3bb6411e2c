// AdamW, Adam and SGD over a list of parameters, in groups, by ATen's fused kernels.
//
// The trainer owns one per rank.  Knows nothing of ranks: gradients are final when it steps.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/plan/config/parameter_groups.h"

namespace penstock::update {

class OffloadedParts;

struct NamedState {
  std::string_view name;  // "exp_avg".
  at::Tensor tensor;
};

class Optimizer {
 public:
  // States are in `memory`, where it is not null.  `names` of the parameters say in which group of
  // the options each is; without any all are in none.
  // Throws: ConfigError, as config::GroupsByName.
  Optimizer(const config::OptimizerConfig& options, std::vector<at::Tensor> parameters,
            OffloadedParts* memory = nullptr, const std::vector<std::string>& names = {});

  // Takes one step at learning rate `lr` with the parameters [first, end), from their gradients;
  // one without a gradient stays as it is.  A group with a rate of its own has it in ratio to `lr`.
  // Gradients are left as they were.
  void step(double lr, std::size_t first, std::size_t end);
  void step(double lr) { step(lr, 0, parameters_.size()); }

  // What it keeps of a parameter, under torch's names; nothing before the parameter's first step,
  // unless it was made.  All but "step", a float scalar, are like the parameter.  Who sets these
  // tensors sets where the optimizer goes on.
  std::vector<NamedState> states(std::size_t parameter) const;
  // The states' names, of any parameter.
  std::vector<std::string_view> state_names() const;
  // Makes them, if they are not there.
  void make_states(std::size_t parameter);
  // Makes a parameter's states those before a first step.  Memory that they have stays theirs.
  void reset_states(std::size_t parameter);

 private:
  struct State {
    at::Tensor step;        // AdamW, Adam: number of steps taken, a float scalar.
    at::Tensor average;     // AdamW, Adam: of the gradient.  SGD: the momentum buffer.
    at::Tensor average_sq;  // AdamW, Adam: of its square.
    at::Tensor max_sq;      // AdamW, Adam, with amsgrad: the largest of those.
    // SGD: the next step is the first, which begins the momentum buffer, there or not.
    bool is_first = true;
  };
  // Parameters of one group.
  struct Turn {
    std::vector<std::size_t> which;
    const config::OptimizerConfig& options;
    double lr = 0.0;
  };
  at::Tensor fresh_state(std::size_t parameter);
  State fresh_adam_states(std::size_t parameter);
  void step_adam(const Turn& turn);
  void step_sgd(const Turn& turn);

  config::OptimizerConfig options_;
  config::GroupsByName groups_;
  std::vector<std::size_t> group_of_;  // Groups by parameter.
  std::vector<at::Tensor> parameters_;
  OffloadedParts* memory_;
  std::vector<State> states_;
};

}  // namespace penstock::update
