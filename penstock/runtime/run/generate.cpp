#include "penstock/runtime/run/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>

namespace penstock::run {

std::vector<std::int64_t> generate(train::Trainer& trainer, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options) {
  const torch::NoGradGuard no_grad;
  at::Generator generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(options.seed));
  std::vector<std::int64_t> tokens = std::move(prompt);
  const std::int64_t before = std::ssize(tokens);
  while (std::ssize(tokens) < before + options.tokens) {
    const std::int64_t seen = std::min(std::ssize(tokens), options.window);
    const at::Tensor all = at::tensor(tokens, at::kLong);
    const at::Tensor logits = trainer.infer(all.slice(0, all.size(0) - seen).unsqueeze(0));
    const at::Tensor next = at::zeros({1}, at::kLong);
    if (trainer.rank_model().is_last_stage()) {
      next.fill_(nn::next_token(logits[0][-1], options.sampling, generator));
    }
    trainer.rank_model().sums().once_over_model(next);
    tokens.push_back(next.item<std::int64_t>());
    if (std::ranges::find(options.ends, tokens.back()) != options.ends.end()) break;
  }
  return {tokens.begin() + before, tokens.end()};
}

}  // namespace penstock::run
