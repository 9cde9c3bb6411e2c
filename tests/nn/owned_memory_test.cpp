#include "penstock/runtime/nn/owned_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::nn {
namespace {

// A module around tensors that it is given.
struct Has : torch::nn::Module {
  explicit Has(const std::function<void(Has&)>& add) { add(*this); }
  at::Tensor forward(const at::Tensor& x) { return x; }
  using torch::nn::Module::register_buffer;
  using torch::nn::Module::register_module;
  using torch::nn::Module::register_parameter;
};

LayerSpec has(const std::function<void(Has&)>& add) {
  return layer("has", [add] { return std::make_shared<Has>(add); });
}

struct Case {
  const char* name;
  const char* said;  // What the error says they share.
  std::function<LayerSpec()> spec;
};

// Functions that capture what they put into the layer.
std::vector<Case> captures() {
  const at::Tensor memory = at::rand({6, 4});
  const auto numbers = std::make_shared<std::vector<float>>(24);
  return {
      {"Parameter", "the parameter \"w\"",
       [memory] {
         const at::Tensor w = memory.clone();
         return has([w](Has& m) { m.register_parameter("w", w); });
       }},
      {"DetachedParameter", "the memory of the parameter \"w\"",
       [memory] { return has([memory](Has& m) { m.register_parameter("w", memory.detach()); }); }},
      {"ViewsOfOneStorage", "the memory of the parameter \"w\"",
       [memory, next = std::make_shared<int>(0)] {
         return has([memory, next](Has& m) { m.register_parameter("w", memory[(*next)++]); });
       }},
      {"FrozenParameter", "the memory of the parameter \"w\"",
       [memory] {
         return has([memory](Has& m) {
           m.register_parameter("w", memory.detach(), /*requires_grad=*/false);
         });
       }},
      {"Buffer", "the buffer \"b\"",
       [memory] { return has([memory](Has& m) { m.register_buffer("b", memory); }); }},
      {"FromBlob", "the memory of the parameter \"w\"",
       [numbers] {
         return has([numbers](Has& m) {
           m.register_parameter("w", at::from_blob(numbers->data(), {24}));
         });
       }},
      {"Pretrained", "the parameter \"weight\"",
       [memory] {
         const at::Tensor table = memory.clone();
         return layer("has", [table] {
           return torch::nn::Embedding::from_pretrained(
               table, torch::nn::EmbeddingFromPretrainedOptions().freeze(false));
         });
       }},
      {"Module", "the parameter \"weight\"",
       [] {
         const torch::nn::Linear linear(4, 4);
         return layer("has", [linear] { return linear; });
       }},
      {"ModuleInside", "the parameter \"0.weight\"",
       [] {
         const torch::nn::Linear linear(4, 4);
         return layer("has", [linear] { return torch::nn::Sequential(linear); });
       }},
      {"ModuleWithoutParameters", "the module",
       [] {
         const torch::nn::ReLU relu;
         return layer("has", [relu] { return relu; });
       }},
  };
}

std::string refusal_of(OwnedMemory& second, const std::string& name, Layer& layer) {
  try {
    second.claim(name, layer);
  } catch (const ConfigError& error) {
    return error.message();
  }
  return {};
}

TEST(OwnedMemory, NamesBothOwnersOfWhatAFunctionCaptures) {
  for (const Case& c : captures()) {
    const LayerSpec spec = c.spec();
    OwnedMemory one("rank 0"), two("rank 1");
    const auto first = build(spec, 1, 0), second = build(spec, 1, 0);
    one.claim("a", *first);
    EXPECT_EQ(refusal_of(two, "b", *second),
              penstock::str("layer \"b\" of rank 1 is made of ", c.said,
                            ", which layer \"a\" of rank 0 has, ",
                            "too: each layer of each rank trains what is its own"))
        << c.name;
    EXPECT_NE(refusal_of(one, "c", *second).find("layer \"a\" of rank 0 has"), std::string::npos)
        << c.name;
  }
}

TEST(OwnedMemory, IsGivenUpWithItsOwner) {
  for (const Case& c : captures()) {
    const LayerSpec spec = c.spec();
    for (int trainer = 0; trainer < 2; ++trainer) {
      OwnedMemory one("rank 0");
      EXPECT_EQ(refusal_of(one, "a", *build(spec, 1, 0)), "") << c.name;
    }
    OwnedMemory one("rank 0"), other("rank 0");
    const auto first = build(spec, 1, 0), second = build(spec, 1, 0);
    one.claim("a", *first);
    EXPECT_NE(refusal_of(other, "a", *second).find("of rank 0 of another Trainer has"),
              std::string::npos)
        << c.name;
  }
}

TEST(OwnedMemory, MayBeSharedWithinALayerAndUsedAgainWhenItIsFree) {
  OwnedMemory one("rank 0"), two("rank 1");
  const auto tied = build(has([](Has& m) {
                            const at::Tensor w = at::rand({4});
                            m.register_parameter("w", w);
                            m.register_parameter("again", w);
                            m.register_buffer("view", w.detach());
                            const torch::nn::Linear linear(2, 2);
                            m.register_module("x", linear.ptr());
                            m.register_module("y", linear.ptr());
                          }),
                          1, 0);
  EXPECT_EQ(refusal_of(one, "tied", *tied), "");
  for (int i = 0; i < 100; ++i) {  // Addresses come again.
    const auto layer = build(nn::layer<torch::nn::Linear>("fc", 4, 4), 1, i);
    EXPECT_EQ(refusal_of(i % 2 == 0 ? one : two, penstock::str("fc", i), *layer), "");
  }
}

}  // namespace
}  // namespace penstock::nn
