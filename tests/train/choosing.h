// A layer that uses parameters or not, as a function of its input says: control flow that replicas
// may share or not.
#pragma once
#include <ATen/ops/rand.h>

#include <functional>
#include <memory>
#include <utility>

#include "tests/train/model_kinds.h"

namespace penstock::train {

struct Choice {
  bool left = true;
  bool right = false;
};

using Choose = std::function<Choice(const at::Tensor& input)>;

class Chooses : public nn::Layer {
 public:
  explicit Chooses(Choose choose)
      : choose_(std::move(choose)),
        left_(register_parameter("left", at::rand({kWidth}))),
        right_(register_parameter("right", at::rand({kWidth}))) {}
  at::Tensor forward(const at::Tensor& input) override {
    const Choice choice = choose_(input);
    at::Tensor output = input;
    if (choice.left) output = output * left_;
    if (choice.right) output = output * right_;
    return output;
  }

 private:
  Choose choose_;
  at::Tensor left_, right_;
};

// An MLP with such a layer in place of another.
inline Kind choosing(std::size_t layer, const Choose& choose) {
  Kind kind = kind_named("Mlp");
  kind.model[layer] =
      nn::layer(kind.model[layer].meta.name, [=] { return std::make_shared<Chooses>(choose); });
  return kind;
}

}  // namespace penstock::train
