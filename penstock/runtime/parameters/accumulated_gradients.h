// The gradients of a step's microbatches, added up where a parameter's own type would lose them.
//
// What sums gradients over replicas takes a parameter's gradient from here.  Where the sums' type
// is that of the parameters, autograd adds them up itself and there is nothing to do.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "penstock/runtime/stage/stage.h"

namespace penstock::parameters {

class AccumulatedGradients {
 public:
  // Sums for parameters of bf16 and fp16 are in `type`; for others, and where it is absent, in the
  // parameters' own.
  AccumulatedGradients(std::vector<stage::NamedParameter> parameters,
                       std::optional<at::ScalarType> type);

  at::ScalarType type(std::size_t parameter) const;

  // A backward is over: what it left in grad() is added to the sums.
  void add();
  // The sum of one parameter, with what is in its grad(), both of which are given up.  Undefined
  // where there is neither.
  at::Tensor take(std::size_t parameter);
  // Gives up the sums, and leaves grad() as it is.
  void drop();

 private:
  bool is_apart(std::size_t parameter) const;
  void add(std::size_t parameter);

  std::vector<stage::NamedParameter> parameters_;
  std::optional<at::ScalarType> type_;
  std::vector<at::Tensor> sums_;  // Sums by parameter; undefined while there is none.
};

}  // namespace penstock::parameters
