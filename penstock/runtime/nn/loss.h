// The loss of one microbatch, from a function of tensors or of tuples, or from a module.
//
// Users give one to the Trainer; the last stage calls it.  A function, or forward(), of (output,
// target) makes one; each of the two may be nn::Values, or made of several tensors (callable.h).
// So does one of all outputs and then all targets.
// A module may have parameters: a Trainer trains them.  It is made as nn::layer() makes one: by
// loss<Module>(arguments), by a function without parameters, or as a copy of the module given.
// Shapes: returns a scalar, the mean over the microbatch's samples.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/hinge_embedding_loss.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/multilabel_margin_loss.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/smooth_l1_loss.h>
#include <ATen/ops/soft_margin_loss.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "penstock/plan/exchange/pieces.h"
#include "penstock/plan/partition/cut.h"
#include "penstock/runtime/nn/callable.h"
#include "penstock/runtime/nn/values.h"

namespace penstock::nn {

using LossFunction = std::function<at::Tensor(const Values& outputs, const Values& targets)>;

// A loss that was made for one rank; without parameters, `module` has none.
struct MadeLoss {
  std::shared_ptr<torch::nn::Module> module;
  LossFunction function;
};

// A loss that ranks compute together, of which each has a part of the outputs.
class SharedLoss {
 public:
  virtual ~SharedLoss() = default;
  // What this rank has of what a piece gives, of what it has of the piece's values.
  virtual Values run_piece(std::size_t piece, const Values& values) const = 0;
};

// The pieces of one: the first takes outputs and then targets, the last gives the loss.
struct LossPieces {
  exchange::Pieces pieces;
  std::function<std::shared_ptr<SharedLoss>(const partition::Share& share)> make;
  exchange::Sums sums = exchange::Sums::AsTheyCome;
};

class Loss {
 public:
  Loss() = default;
  Loss(std::nullptr_t) {}  // NOLINT: "no loss", as for any function.

  template <class F>
    requires(!std::same_as<F, Loss>)
  Loss(F loss);  // NOLINT: functions are meant to convert.

  // The same, of one that wants outputs of bf16 or fp16 as they are; others get them in float, and
  // have parameters in float.
  Loss of_any_type() && {
    takes_any_type_ = true;
    return std::move(*this);
  }
  bool takes_any_type() const { return takes_any_type_; }

  // The same, of one that ranks which share the last layer compute in pieces.  Others, and ranks
  // that share no layers, call the function: it takes whole outputs.
  Loss in_pieces(LossPieces pieces) && {
    pieces_ = std::make_shared<const LossPieces>(std::move(pieces));
    return std::move(*this);
  }
  // Null: it has none.
  const std::shared_ptr<const LossPieces>& pieces() const { return pieces_; }

  explicit operator bool() const { return function_ != nullptr || make_ != nullptr; }
  // REQUIRES: it is not of a module.
  at::Tensor operator()(const Values& outputs, const Values& targets) const {
    return function_(outputs, targets);
  }

  // Whether it is of a module, which each rank that needs one makes.
  bool is_of_module() const { return make_ != nullptr; }
  MadeLoss make() const { return make_(); }
  // The one that each of them copies; null: they make one.
  const std::shared_ptr<torch::nn::Module>& copied() const { return copied_; }

 private:
  LossFunction function_;
  std::function<MadeLoss()> make_;
  std::shared_ptr<torch::nn::Module> copied_;
  std::shared_ptr<const LossPieces> pieces_;
  bool takes_any_type_ = false;
};

// 0, with gradients of 0 for all outputs: the loss of a microbatch in which nothing counts.
at::Tensor loss_of_nothing(const Values& outputs, const Values& targets);

namespace callable {

// Whether `F` is called with two parameters, one made of outputs and one made of targets.
template <class F>
consteval bool takes_two() {
  if constexpr (std::is_void_v<Parameters<F>>) {
    return false;
  } else if constexpr (std::tuple_size_v<Parameters<F>> < 2) {
    return false;
  } else {
    using List = Parameters<F>;
    return (kTensors<List, 0> != kNoTensors || kIsMany<List, 0>) &&
           (kTensors<List, 1> != kNoTensors || kIsMany<List, 1>) &&
           std::invocable<F&, Parameter<List, 0>, Parameter<List, 1>>;
  }
}

// Whether `F` is called with all outputs and all targets, one parameter a tensor.
template <class F>
consteval bool takes_all() {
  if constexpr (std::is_void_v<Parameters<F>>) {
    return takes_values<F>() || takes_tensors<F>();
  } else {
    return std::tuple_size_v<Parameters<F>> >= 2 && takes_tensors<F>();
  }
}
template <class F>
concept ALoss = takes_two<F>() || takes_all<F>();

template <ALoss F>
at::Tensor call_loss(F& function, const Values& outputs, const Values& targets) {
  if constexpr (takes_two<F>()) {
    using List = Parameters<F>;
    const bool outputs_fit = kIsMany<List, 0> || outputs.size() == kTensors<List, 0>;
    const bool targets_fit = kIsMany<List, 1> || targets.size() == kTensors<List, 1>;
    if (outputs_fit && targets_fit) {
      auto output = argument_of<Parameter<List, 0>>(outputs);
      auto target = argument_of<Parameter<List, 1>>(targets);
      return result_of<at::Tensor>(function(output.pass(), target.pass()));
    }
    if constexpr (std::tuple_size_v<List> == 2) {
      if (!outputs_fit) refuse_number("the loss", {kTensors<List, 0>}, outputs.size());
      refuse_number("the loss's target", {kTensors<List, 1>}, targets.size());
    }
  }
  if constexpr (takes_all<F>()) {
    Values all = outputs;
    all.insert(all.end(), targets.begin(), targets.end());
    return call<at::Tensor>(function, all, "the loss");
  } else {
    refuse_number("the loss", {2}, outputs.size() + targets.size());
  }
}

// Throws: Error; of another function of such a type nobody knows the defaults.
[[noreturn]] void refuse_pointer();

// torch's losses by their pointers, which do not know what their other parameters are by default.
template <class F>
concept TypeOfTorchsLoss =
    std::same_as<F, decltype(&at::mse_loss)> || std::same_as<F, decltype(&at::huber_loss)> ||
    std::same_as<F, decltype(&at::kl_div)> || std::same_as<F, decltype(&at::nll_loss)> ||
    std::same_as<F, decltype(&at::hinge_embedding_loss)> ||
    std::same_as<F, decltype(&at::binary_cross_entropy)> ||
    std::same_as<F, decltype(&at::binary_cross_entropy_with_logits)> ||
    std::same_as<F, decltype(&at::cross_entropy_loss)>;

template <TypeOfTorchsLoss F>
LossFunction torchs_loss(F loss) {
  using T = const at::Tensor&;
  at::Tensor (*found)(T, T) = nullptr;
  const auto is = [&](auto* torchs, at::Tensor (*with_defaults)(T, T)) {
    if constexpr (std::same_as<decltype(torchs), F>) {
      if (loss == torchs) found = with_defaults;
    }
  };
  is(&at::mse_loss, [](T y, T t) { return at::mse_loss(y, t); });
  is(&at::l1_loss, [](T y, T t) { return at::l1_loss(y, t); });
  is(&at::smooth_l1_loss, [](T y, T t) { return at::smooth_l1_loss(y, t); });
  is(&at::huber_loss, [](T y, T t) { return at::huber_loss(y, t); });
  is(&at::soft_margin_loss, [](T y, T t) { return at::soft_margin_loss(y, t); });
  is(&at::multilabel_margin_loss, [](T y, T t) { return at::multilabel_margin_loss(y, t); });
  is(&at::hinge_embedding_loss, [](T y, T t) { return at::hinge_embedding_loss(y, t); });
  is(&at::kl_div, [](T y, T t) { return at::kl_div(y, t); });
  is(&at::nll_loss, [](T y, T t) { return at::nll_loss(y, t); });
  is(&at::cross_entropy_loss, [](T y, T t) { return at::cross_entropy_loss(y, t); });
  is(&at::binary_cross_entropy, [](T y, T t) { return at::binary_cross_entropy(y, t); });
  is(&at::binary_cross_entropy_with_logits,
     [](T y, T t) { return at::binary_cross_entropy_with_logits(y, t); });
  if (found == nullptr) refuse_pointer();
  return [found](const Values& outputs, const Values& targets) mutable {
    return call_loss(found, outputs, targets);
  };
}

template <class F>
LossFunction loss_function(F loss) {
  if constexpr (TypeOfTorchsLoss<F>) {
    return torchs_loss(loss);
  } else {
    auto function = with_default_options(std::move(loss));
    using Function = decltype(function);
    static_assert(ALoss<Function>,
                  "penstock: a loss is a function, or a torch::nn module with a public forward(), "
                  "of (output, target), of which each is a tensor, made of tensors or "
                  "penstock::nn::Values; or a function without parameters that makes such a "
                  "module; penstock/runtime/nn/loss.h");
    if constexpr (ALoss<Function>) {
      return
          [function = std::move(function)](const Values& outputs, const Values& targets) mutable {
            return call_loss(function, outputs, targets);
          };
    } else {
      return nullptr;
    }
  }
}

template <class F>
concept MakerOfAModule = Maker<F> && AModule<std::invoke_result_t<F&>>;

template <AModule Thing>
MadeLoss made_loss(Thing thing) {
  const auto handle = handle_of(std::move(thing));
  return {module_of(handle), loss_function(function_of(handle))};
}

}  // namespace callable

template <class F>
  requires(!std::same_as<F, Loss>)
Loss::Loss(F loss) {
  if constexpr (callable::AModule<F>) {
    auto handle = callable::handle_of(std::move(loss));
    copied_ = callable::module_of(handle);
    make_ = [handle = std::move(handle)] { return callable::made_loss(callable::copy_of(handle)); };
  } else if constexpr (callable::MakerOfAModule<F>) {
    make_ = [make = std::move(loss)]() mutable { return callable::made_loss(make()); };
  } else {
    function_ = callable::loss_function(std::move(loss));
  }
}

// A loss from a class of modules and its arguments: loss<torch::nn::MSELoss>().
template <class Module, class... Args>
Loss loss(Args... args) {
  constexpr bool kMakes = callable::Makes<Module, Args...>;
  static_assert(kMakes,
                "penstock: loss<Module>(arguments) takes a class that derives from "
                "torch::nn::Module, or a holder of one such as torch::nn::MSELoss, and arguments "
                "of its constructor; penstock/runtime/nn/loss.h");
  if constexpr (kMakes) {
    return Loss([args...] { return callable::made<Module>(args...); });
  } else {
    return nullptr;
  }
}

}  // namespace penstock::nn
