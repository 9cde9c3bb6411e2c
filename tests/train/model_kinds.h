// Models of many kinds, and a plain loop that runs any of them in one process: what every layout
// must equal.
//
// The loop knows skips, ties and random numbers from their definitions: it keeps skips in a map,
// has a copy of a tied parameter in each layer and adds up their gradients, and opens a DrawScope
// around each layer and the loss.  all_kinds() have eight layers.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <string>
#include <vector>

#include "penstock/nn/gpt.h"
#include "penstock/runtime/nn/draw.h"
#include "penstock/runtime/nn/dropout.h"
#include "penstock/runtime/nn/loss_layer.h"
#include "penstock/runtime/nn/mlp.h"
#include "penstock/train/trainer.h"

namespace penstock::train {

constexpr std::int64_t kWidth = 8;
constexpr std::int64_t kSequence = 12;

struct Batch2 {
  nn::Values inputs;
  nn::Values targets;
};

// The chunk of number `which` of each tensor.
inline nn::Values part(const nn::Values& whole, std::int64_t which, std::int64_t of) {
  nn::Values values;
  for (const at::Tensor& tensor : whole) {
    values.push_back(tensor.chunk(of)[static_cast<std::size_t>(which)]);
  }
  return values;
}

// A kind of model.
struct Kind {
  std::string name;
  std::vector<nn::LayerSpec> model;
  nn::Loss loss;
  // `length`: of sequences, for models that have any.
  std::function<Batch2(std::int64_t samples, std::int64_t length)> batch;
};

inline at::Tensor squares(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

inline Batch2 vectors(std::int64_t samples, std::int64_t) {
  return {at::rand({samples, kWidth}) - 0.5, at::rand({samples, kWidth})};
}

inline Batch2 sentences(std::int64_t samples, std::int64_t length) {
  const at::Tensor text = at::randint(256, {samples, length + 1}, at::kLong);
  return {text.slice(1, 0, -1).contiguous(), text.slice(1, 1).contiguous()};
}

inline nn::LayerSpec linear(const std::string& name) {
  return nn::layer<torch::nn::Linear>(name, kWidth, kWidth);
}

inline nn::LayerSpec relu_in_place(const std::string& name) {
  return nn::layer<torch::nn::ReLU>(name, torch::nn::ReLUOptions(/*inplace=*/true));
}

// Two tensors to tanh(Linear(their sum)).
class Joins : public nn::Layer {
 public:
  Joins() : fc_(register_module("fc", torch::nn::Linear(kWidth, kWidth))) {}
  nn::Values forward_values(const nn::Values& inputs) override {
    at::Tensor sum = inputs[0];
    for (std::size_t i = 1; i < inputs.size(); ++i) sum = sum + inputs[i];
    return fc_->forward(sum).tanh();
  }

 private:
  torch::nn::Linear fc_;
};

inline nn::LayerSpec joins(const std::string& name) {
  return nn::layer(name, [] { return std::make_shared<Joins>(); });
}

// (tokens, mask, features) to (hidden, mask, tokens, a gate that takes a gradient, nothing).
class Mixes : public nn::Layer {
 public:
  Mixes()
      : wte_(register_module("wte", torch::nn::Embedding(256, kWidth))),
        gate_(register_parameter("gate", at::rand({kWidth}))) {}
  nn::Values forward_values(const nn::Values& inputs) override {
    const at::Tensor hidden = wte_->forward(inputs[0]) + inputs[2].unsqueeze(-1);
    return {hidden, inputs[1], inputs[0].to(at::kInt), gate_.sigmoid(), at::Tensor()};
  }

 private:
  torch::nn::Embedding wte_;
  at::Tensor gate_;
};

class Gates : public nn::Layer {
 public:
  Gates() : fc_(register_module("fc", torch::nn::Linear(kWidth, kWidth))) {}
  nn::Values forward_values(const nn::Values& inputs) override {
    const at::Tensor even = inputs[2].remainder(2).eq(0).unsqueeze(-1);
    const at::Tensor hidden = fc_->forward(inputs[0]) * inputs[3];
    return {at::where(inputs[1].unsqueeze(-1).logical_and(even), hidden, inputs[0]), inputs[1],
            inputs[2], inputs[3], inputs[4]};
  }

 private:
  torch::nn::Linear fc_;
};

inline Kind mixed_types() {
  const auto gates = [](const char* name) {
    return nn::layer(name, [] { return std::make_shared<Gates>(); });
  };
  return {"MixedTypes",
          {nn::layer("mixes", [] { return std::make_shared<Mixes>(); }), gates("a"), gates("b"),
           gates("c"), gates("d"), gates("e"), gates("f"), gates("g")},
          [](const nn::Values& outputs, const at::Tensor& target) {
            return (outputs[0].mean(-1) - target).pow(2).mean();
          },
          [](std::int64_t samples, std::int64_t length) -> Batch2 {
            return {{at::randint(256, {samples, length}, at::kLong),
                     at::rand({samples, length}) > 0.3, at::rand({samples, length})},
                    at::rand({samples, length})};
          }};
}

// One skip from the first layer almost to the last, one that is taken twice; and a layer between
// that works in place on what may have come with them.
inline Kind skips() {
  return {"Skips",
          {linear("in").gives("whole"), linear("down").gives("half"), joins("low"), linear("lower"),
           relu_in_place("middle"), joins("up").takes("half"),
           joins("top").takes("whole").takes("half"), linear("out")},
          squares,
          vectors};
}

inline Kind batch_norm() {
  return {"BatchNorm",
          {linear("a"), nn::layer<torch::nn::BatchNorm1d>("norm1", kWidth), relu_in_place("act1"),
           linear("b"), nn::layer<torch::nn::BatchNorm1d>("norm2", kWidth), relu_in_place("act2"),
           joins("c"), linear("d")},
          squares,
          vectors};
}

inline Kind dropout() {
  const auto drop = [](const char* name) { return nn::layer<nn::Dropout>(name, 0.4); };
  const auto twice = [] {
    return torch::nn::Sequential(nn::Dropout(0.2), torch::nn::Linear(kWidth, kWidth),
                                 nn::Dropout(0.3));
  };
  return {"Dropout",
          {linear("a"), drop("drop1"), linear("b"), drop("drop2"), joins("c"), drop("drop3"),
           nn::layer("twice", twice), linear("d")},
          squares,
          vectors};
}

inline Kind torchs_dropout() {
  const auto drop = [](const char* name) { return nn::layer<torch::nn::Dropout>(name, 0.4); };
  const auto inside = [] {
    return torch::nn::Sequential(torch::nn::Dropout(0.2), torch::nn::Linear(kWidth, kWidth));
  };
  return {"TorchsDropout",
          {linear("a"), drop("drop1"), linear("b"), nn::layer("inside", inside), joins("c"),
           drop("drop2"), joins("d"), linear("e")},
          squares,
          vectors};
}

// A weight in the first and the last layer, a bias in three, and all of a layer in two.
inline Kind ties() {
  const auto ends = [](const char* name) {
    return nn::TiedLayerSpec("w", nn::TiedLayerSpec("b", linear(name), {"bias"}), {"weight"});
  };
  const auto whole = [](const char* name) { return nn::TiedLayerSpec("whole", joins(name)); };
  return {"Ties",
          {ends("first"), whole("x"), nn::TiedLayerSpec("b", linear("middle"), {"bias"}),
           joins("u"), whole("y"), joins("z"), joins("v"), ends("last")},
          squares,
          vectors};
}

inline Kind gpt(const std::string& name, bool tied, double dropout) {
  return {name,
          nn::gpt_layers({.layers = 6,
                          .hidden = 16,
                          .heads = 2,
                          .sequence_length = kSequence,
                          .tie_embeddings = tied,
                          .dropout = dropout}),
          nn::next_byte_loss, sentences};
}

// A loss with parameters: of its own, and of a module inside.
struct Weighs : torch::nn::Module {
  Weighs()
      : head(register_module("head", torch::nn::Linear(kWidth, kWidth))),
        logs(register_parameter("logs", at::rand({2}))) {}
  at::Tensor forward(const at::Tensor& output, const at::Tensor& target) {
    const at::Tensor weights = logs.neg().exp();
    return weights[0] * at::mse_loss(head(output), target) +
           weights[1] * at::mse_loss(output, target) + logs.sum();
  }
  torch::nn::Linear head;
  at::Tensor logs;
};

inline Kind trained_loss() {
  return {"TrainedLoss", nn::mlp_layers(kWidth, 8), nn::loss<Weighs>(), vectors};
}

inline std::vector<Kind> all_kinds() {
  return {{"Mlp", nn::mlp_layers(kWidth, 8), squares, vectors},
          gpt("Gpt", false, 0.0),
          gpt("TiedGpt", true, 0.0),
          gpt("GptWithDropout", false, 0.3),
          skips(),
          ties(),
          batch_norm(),
          dropout(),
          torchs_dropout(),
          mixed_types(),
          trained_loss()};
}

inline Kind kind_named(const std::string& name) {
  for (Kind& kind : all_kinds()) {
    if (kind.name == name) return kind;
  }
  return {};
}

// The model in one process.
class PlainModel {
 public:
  // type: of floating parameters, buffers and inputs; a loss gets float.
  PlainModel(const Kind& kind, std::int64_t seed, at::ScalarType type = at::kFloat)
      : model_(nn::with_loss(kind.model, kind.loss)), loss_(kind.loss), seed_(seed), type_(type) {
    at::set_num_threads(1);
    const torch::NoGradGuard no_grad;
    std::map<std::string, at::Tensor> first;  // First copy of each tied parameter.
    for (std::size_t i = 0; i < model_.size(); ++i) {
      const nn::LayerSpec& spec = model_[i];
      layers_.push_back(nn::build(spec, seed, static_cast<std::int64_t>(i)));
      for (const auto& parameter : layers_.back()->named_parameters()) {
        std::string name = spec.meta.name + "." + parameter.key();
        for (const nn::Tie& tie : spec.ties) {
          const bool all = tie.parameters.empty();
          if (!all && tie.parameters != std::vector{parameter.key()}) continue;
          const std::string id = tie.key + (all ? parameter.key() : "");
          if (first.emplace(id, parameter.value()).second) name_of_[id] = name;
          parameter.value().copy_(first[id]);
          name = name_of_[id];
        }
        parameters_[name].push_back(parameter.value());
      }
      const bool is_loss = static_cast<std::int32_t>(i) >= nn::layers_in_line(model_);
      if (type != at::kFloat && !is_loss) cast(*layers_.back());
    }
    if (loss_.is_of_module()) loss_ = nn::loss_of(layers_.back(), loss_);
  }

  // One more microbatch, as number `microbatch` of all; its loss.  Gradients add up.
  at::Tensor add(const nn::Values& inputs, const nn::Values& targets, std::int64_t step,
                 std::int64_t microbatch, double factor) {
    const nn::Values outputs = run(of_type(inputs, type_), step, microbatch);
    const nn::DrawScope scope(
        {.seed = seed_, .step = step, .microbatch = microbatch, .layer = std::ssize(model_)});
    const at::Tensor loss = loss_(of_type(outputs, at::kFloat), targets);
    torch::autograd::backward({loss}, {at::full({}, factor)});
    return loss.detach();
  }

  nn::Values infer(const nn::Values& inputs) {
    const torch::NoGradGuard no_grad;
    for (const auto& layer : layers_) layer->eval();
    nn::Values outputs = run(inputs, 0, 0);
    for (const auto& layer : layers_) layer->train();
    return outputs;
  }

  nn::Values run(const nn::Values& inputs, std::int64_t step, std::int64_t microbatch) {
    std::map<std::string, at::Tensor> skips;
    nn::Values values = inputs;
    for (std::size_t i = 0; i < static_cast<std::size_t>(nn::layers_in_line(model_)); ++i) {
      const nn::LayerSpec& spec = model_[i];
      for (const std::string& name : spec.taken) values.push_back(skips.at(name));
      const nn::DrawScope scope({.seed = seed_,
                                 .step = step,
                                 .microbatch = microbatch,
                                 .layer = static_cast<std::int64_t>(i)});
      values = layers_[i]->forward_values(values);
      for (const std::string& name : spec.given) skips[name] = values.at(0);
    }
    return values;
  }

  // Gradients by the names that Stage gives them; of a tied one, the sum over its layers.
  std::map<std::string, at::Tensor> gradients() const {
    std::map<std::string, at::Tensor> gradients;
    for (const auto& [name, copies] : parameters_) {
      at::Tensor sum;
      for (const at::Tensor& copy : copies) {
        if (copy.grad().defined()) sum = sum.defined() ? sum + copy.grad() : copy.grad();
      }
      gradients[name] = sum;
    }
    return gradients;
  }

  void drop_gradients() {
    for (auto& [name, copies] : parameters_) {
      for (at::Tensor& copy : copies) copy.mutable_grad().reset();
    }
  }

  // Parameters by the same names; several copies of a tied one.
  std::map<std::string, std::vector<at::Tensor>>& parameters() { return parameters_; }

  std::map<std::string, at::Tensor> buffers() const {
    std::map<std::string, at::Tensor> buffers;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      for (const auto& buffer : layers_[i]->named_buffers()) {
        buffers[model_[i].meta.name + "." + buffer.key()] = buffer.value();
      }
    }
    return buffers;
  }

 private:
  void cast(torch::nn::Module& layer) const {
    for (at::Tensor& each : layer.parameters()) {
      if (each.is_floating_point()) each.set_data(each.to(type_));
    }
    for (at::Tensor& each : layer.buffers()) {
      if (each.is_floating_point()) each.set_data(each.to(type_));
    }
  }

  static nn::Values of_type(nn::Values values, at::ScalarType type) {
    for (at::Tensor& each : values) {
      if (each.defined() && each.is_floating_point() && each.scalar_type() != type) {
        each = each.to(type);
      }
    }
    return values;
  }

  std::vector<nn::LayerSpec> model_;  // A loss with parameters is its last layer.
  nn::Loss loss_;
  std::int64_t seed_;
  at::ScalarType type_;
  std::vector<std::shared_ptr<nn::Layer>> layers_;
  std::map<std::string, std::string> name_of_;  // Names by tie.
  std::map<std::string, std::vector<at::Tensor>> parameters_;
};

}  // namespace penstock::train
