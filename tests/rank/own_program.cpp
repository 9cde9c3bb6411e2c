// A program as a user writes it, to be launched: it trains, and may go wrong on rank 1 in step 15.
//
//   own_program FAULT: none, throw, refuse (with exit code 2), kill, stop, ponder (3 s of its own
//   code), catch (what the layer throws, and be killed by code of its own), or polite: it trains
//   until it is asked to stop, and ends in good order then; uneven: likewise, with a first step in
//   which rank 0 alone has asked for that.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <signal.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

#include "penstock/core/error.h"
#include "penstock/rank/rank_process.h"
#include "penstock/train/trainer.h"

namespace {

using namespace penstock;

std::string fault;
bool is_time = false, works = false, is_slow = false;

struct Fragile : torch::nn::Module {
  Fragile() : fc(register_module("fc", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& input) {
    if (is_time && (fault == "throw" || fault == "catch"))
      throw std::runtime_error("the layer had enough");
    if (is_time && fault == "refuse") throw ConfigError("the layer takes no such data");
    if (is_time && fault == "kill") ::raise(SIGKILL);
    if (is_time && fault == "stop") ::raise(SIGSTOP);
    // The other rank waits for rank 1, and hears of its end before anybody else.
    if (works) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (is_slow) std::this_thread::sleep_for(std::chrono::seconds(1));
    return fc(input);
  }
  torch::nn::Linear fc;
};

// printf(), and not a line later.
void say(const char* format, auto... words) {
  std::printf(format, words...);
  std::fflush(stdout);
}

// Trains until all ranks know that one of them is asked to stop: they end after the same step.
int train_until_asked(train::Trainer& trainer, comm::Communicator& ranks, const at::Tensor& x,
                      const at::Tensor& t) {
  const bool is_first = ranks.rank().value == 0;
  for (std::int64_t step = 1;; ++step) {
    const bool is_uneven = fault == "uneven" && step == 1;
    is_slow = is_uneven && !is_first;
    if (!is_slow) trainer.words().stop = rank::stop_requested().has_value();
    if (is_uneven && is_first) say("rank 0 has asked\n");
    const bool stops = trainer.step(x, t).words.stop;
    if (is_first) say("step %ld\n", step);
    if (!stops) continue;
    std::printf("rank %d ends in good order\n", ranks.rank().value);
    return static_cast<int>(rank::stop_requested().value_or(ExitCode::Preempted));
  }
}

}  // namespace

int main(int, char** argv) {
  fault = argv[1];
  const auto ranks = rank::connect_process();
  works = ranks->rank().value == 1;
  const std::vector<nn::LayerSpec> layers = {
      nn::layer("a", [] { return std::make_shared<Fragile>(); }),
      nn::layer("b", [] { return std::make_shared<Fragile>(); })};
  train::Trainer trainer(
      {.mesh = {.pipe = 2}, .microbatches = 2}, layers,
      [](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); }, *ranks);
  const at::Tensor x = at::rand({4, 4}), t = at::rand({4, 4});
  if (fault == "polite" || fault == "uneven") return train_until_asked(trainer, *ranks, x, t);
  for (std::int64_t step = 1; step <= 20; ++step) {
    is_time = step == 15 && ranks->rank().value == 1;
    if (is_time && fault == "ponder") std::this_thread::sleep_for(std::chrono::seconds(3));
    try {
      trainer.step(x, t);
    } catch (const Error&) {
      if (fault != "catch") throw;
      std::this_thread::sleep_for(std::chrono::seconds(1));  // Its launcher hears of it meanwhile.
      if (is_time) ::raise(SIGKILL);
    }
    if (ranks->rank().value == 0) say("step %ld\n", step);
  }
  return 0;
}
