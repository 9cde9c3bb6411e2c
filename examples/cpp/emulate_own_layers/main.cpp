// What a step of one's own layers takes on 2 stages x 2 replicas of two devices, none of which is
// there.
#include <penstock/emulate/emulate.h>
#include <torch/torch.h>

#include <cstdio>

constexpr int kTokens = 256, kLength = 512, kWidth = 1024, kHeads = 16, kBlocks = 2;

struct Embedding : torch::nn::Module {
  torch::Tensor forward(torch::Tensor tokens) {
    return words(tokens) + places(torch::arange(tokens.size(1), tokens.options()));
  }
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(kTokens, kWidth));
  torch::nn::Embedding places = register_module("places", torch::nn::Embedding(kLength, kWidth));
};

struct Block : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    const auto parts = inward(norm_1(x)).chunk(3, /*dim=*/2);
    const auto heads = [&](const torch::Tensor& part) {
      return part.view({x.size(0), x.size(1), kHeads, -1}).transpose(1, 2);
    };
    const torch::Tensor mixed = torch::scaled_dot_product_attention(
        heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0.0, /*is_causal=*/true);
    x = x + outward(mixed.transpose(1, 2).reshape(x.sizes()));
    return x + down(torch::gelu(up(norm_2(x)), "tanh"));
  }
  torch::nn::LayerNorm norm_1 = norm("norm_1");
  torch::nn::Linear inward = linear("inward", kWidth, 3 * kWidth),
                    outward = linear("outward", kWidth, kWidth);
  torch::nn::LayerNorm norm_2 = norm("norm_2");
  torch::nn::Linear up = linear("up", kWidth, 4 * kWidth),
                    down = linear("down", 4 * kWidth, kWidth);

 private:
  torch::nn::LayerNorm norm(const char* name) {
    return register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  }
  torch::nn::Linear linear(const char* name, int in, int out) {
    return register_module(name, torch::nn::Linear(in, out));
  }
};

struct Head : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return words(norm(x)); }
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear words = register_module(
      "words", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kTokens).bias(false)));
};

int main() {
  const torch::Tensor text = torch::zeros({8, kLength}, torch::kLong);  // A replica's.
  penstock::emulate::Step step{
      .options = {.mesh = {.pipe = 2, .data = 2},
                  .microbatches = 4,
                  .zero = {.stage = penstock::train::ZeroStage::Gradients}},
      .loss =
          [](const torch::Tensor& logits, const torch::Tensor& targets) {
            return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
          },
      .inputs = text,
      .targets = text,
  };
  step.layers.push_back(penstock::nn::layer<Embedding>("embedding"));
  for (int i = 0; i < kBlocks; ++i) {
    step.layers.push_back(penstock::nn::layer<Block>("block " + std::to_string(i)));
  }
  step.layers.push_back(penstock::nn::layer<Head>("head"));
  for (const char* name : {"h100-sxm", "a100-80"}) {
    const penstock::emulate::Report report =
        penstock::emulate::emulate(step, penstock::devices::device_model(name));
    std::printf("%s: %.1f ms a step, %.0f samples a second\n", name, 1e3 * report.step_s,
                static_cast<double>(report.samples) / report.step_s);
    for (const penstock::emulate::RankReport& rank : report.ranks) {
      std::printf("  %ld kernels, %ld messages of %ld bytes, %ld bytes at the peak\n",
                  rank.step.all_kernels(), rank.step.messages, rank.step.message_bytes,
                  rank.memory.peak);
    }
  }
}
