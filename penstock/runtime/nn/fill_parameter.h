// A function that gives a parameter its first values, whether a rank has all of it or a part.
//
// Decoders are filled by one (decoder.h).  A part has the bits that it has in the whole parameter,
// so first weights are the same however many ranks share them.
#pragma once
#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <string>
#include <utility>

#include "penstock/plan/partition/cut.h"

namespace penstock::nn {

class FillParameter {
 public:
  using Whole = std::function<void(const std::string& name, at::Tensor& parameter)>;
  using Part =
      std::function<void(const std::string& name, at::Tensor& part, const partition::Cut& cut)>;

  FillParameter() = default;
  // A function of (name, parameter) is given whole parameters: of one that is cut, a whole one is
  // filled, and the part is taken of it.  A function of (name, part, cut) fills the part itself.
  template <class F>
    requires(!std::same_as<F, FillParameter>)
  FillParameter(F fill) {  // NOLINT: functions are meant to convert.
    if constexpr (std::constructible_from<Part, F>) {
      fill_ = std::move(fill);
    } else {
      fill_ = part_of_whole(std::move(fill));
    }
  }

  // `name` is the model's name for the parameter; `cut` says which part of it `part` is.
  void operator()(const std::string& name, at::Tensor& part, const partition::Cut& cut = {}) const {
    fill_(name, part, cut);
  }

 private:
  static Part part_of_whole(Whole fill);

  Part fill_;
};

}  // namespace penstock::nn
