#include "penstock/run/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "penstock/core/error.h"

namespace penstock::run {
namespace {

constexpr double kTemperature = 0.8;

at::Tensor as_tokens(const std::string& text, std::size_t length) {
  const at::Tensor tokens = at::empty({1, static_cast<std::int64_t>(length)}, at::kLong);
  auto* token = tokens.data_ptr<std::int64_t>();
  for (std::size_t i = text.size() - length; i < text.size(); ++i) {
    *token++ = static_cast<unsigned char>(text[i]);
  }
  return tokens;
}

}  // namespace

std::string generate(train::Trainer& trainer, const std::string& prompt, std::int64_t bytes,
                     std::int64_t seed) {
  const torch::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  std::string text = prompt;
  for (std::int64_t i = 0; i < bytes; ++i) {
    const at::Tensor logits = trainer.infer(as_tokens(text, prompt.size()));
    const at::Tensor next = at::zeros({1}, at::kLong);
    if (trainer.rank_model().is_last_stage()) {
      const at::Tensor last = logits[0][-1].cpu().to(at::kFloat) / kTemperature;
      if (!at::isfinite(last).all().item<bool>()) {
        throw NumericsError("generating text: the model's output is not finite");
      }
      next.copy_(at::multinomial(last.softmax(0), 1, /*replacement=*/false, generator));
    }
    trainer.rank_model().sum_over_pipe(next);
    text += static_cast<char>(next.item<std::int64_t>());
  }
  return text.substr(prompt.size());
}

}  // namespace penstock::run
