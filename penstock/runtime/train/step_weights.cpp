#include "penstock/runtime/train/step_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/or_fail.h"
#include "penstock/runtime/train/training_calls.h"

namespace penstock::train {
namespace {

// The ranks with a stage.
const mesh::Place& ranks_with(std::int32_t stage, const Layout& layout,
                              const mesh::Groups& groups) {
  const Rank home = layout.schedule.facts().homes.on_way(0, static_cast<std::size_t>(stage));
  const Rank here = groups.pipe.ranks[home.index()];
  return groups.places[static_cast<std::size_t>(groups.place_of(here))];
}

// Pairs each rank that has the last stage with the rank that tells it of the first stage: itself,
// if it has both, or one that has it.
std::vector<std::pair<Rank, Rank>> firsts_of_lasts(const Layout& layout,
                                                   const mesh::Groups& groups) {
  const mesh::Place& firsts = ranks_with(0, layout, groups);
  const mesh::Place& lasts = ranks_with(layout.partition.stages() - 1, layout, groups);
  std::vector<std::pair<Rank, Rank>> pairs;
  for (std::size_t i = 0; i < lasts.size(); ++i) {
    const bool has_both = std::ranges::count(firsts, lasts[i]) > 0;
    pairs.emplace_back(has_both ? lasts[i] : firsts[i % firsts.size()], lasts[i]);
  }
  return pairs;
}

// A tag that no message of a program has.
std::int32_t tag_of(const Layout& layout) {
  constexpr std::int32_t kSamplesPart = 3;
  return lower::message_tag({.stage = StageId(layout.partition.stages() - 1),
                             .op = schedule::Op::RecvForward,
                             .microbatch = Microbatch(0)},
                            kSamplesPart);
}

}  // namespace

StepWeights::StepWeights(const TrainerOptions& options, const Layout& layout, RankModel& rank_model,
                         comm::Communicator& communicator, execute::Progress& progress)
    : options_(options),
      rank_model_(rank_model),
      communicator_(communicator),
      progress_(progress),
      tag_(tag_of(layout)) {
  for (const auto& [first, last] : firsts_of_lasts(layout, rank_model.groups())) {
    if (first == last) continue;
    if (first == communicator.rank()) tells_.push_back(last);
    if (last == communicator.rank()) hears_from_ = first;
  }
  std::vector<Rank> peers = tells_;
  if (hears_from_) peers.push_back(*hears_from_);
  communicator_.link(peers);
}

// Samples by microbatch, behind the number of batches.  Messages have one size, whatever that
// number is.
std::vector<double> StepWeights::samples_of(const Microbatches& batch, std::size_t batches) {
  std::vector<double> mine = {static_cast<double>(batches)};
  if (rank_model_.is_first_stage()) {
    for (const nn::Values& inputs : batch.inputs) mine.push_back(samples_of_inputs(inputs));
  }
  told_.clear();
  for (const Rank last : tells_) {
    const at::Tensor numbers = at::empty({std::ssize(mine)}, at::kDouble);
    std::ranges::copy(mine, numbers.data_ptr<double>());
    told_.push_back(communicator_.send(numbers, last, tag_));
  }
  if (!hears_from_) return mine;
  const at::Tensor numbers = at::empty({1 + options_.microbatches}, at::kDouble);
  const execute::WaitMark wait(progress_, "waiting for the samples of microbatches");
  communicator_.receive(numbers, *hears_from_, tag_)->wait();
  const auto* const first = numbers.const_data_ptr<double>();
  return {first, first + numbers.numel()};
}

std::vector<double> StepWeights::of_this_replica(const Microbatches& batch, std::size_t batches) {
  std::vector<double> samples = samples_of(batch, batches);
  std::vector<double> weights = {static_cast<double>(batches)};
  if (!rank_model_.is_last_stage()) return weights;
  if (samples.front() != weights.front()) {
    throw Error(str("the rank with the first stage has a step of ", samples.front(),
                    " batches, that with the last one of ", batches));
  }
  samples.erase(samples.begin());
  if (batch.cut_by == CutBy::Trainer) check_targets(batch.targets, samples);
  for (std::size_t m = 0; m < samples.size(); ++m) {
    weights.push_back(options_.loss_scale.weight(samples[m], batch.targets[m]));
  }
  return weights;
}

std::vector<double> StepWeights::of(const std::vector<Microbatches>& batches, std::int64_t step) {
  const auto where = in_step(step);
  std::vector<std::vector<double>> of_replica(rank_model_.groups().other_samples.ranks.size());
  for (const Microbatches& batch : batches) {
    const std::vector<double> mine = comm::or_fail_at(
        communicator_, where, [&] { return of_this_replica(batch, batches.size()); });
    if (!rank_model_.is_last_stage()) continue;
    const std::vector<double> all =
        rank_model_.sums().over_replicas(mine, "sharing the weights of microbatches");
    auto next = all.begin();
    for (std::vector<double>& weights : of_replica) {
      comm::or_fail(communicator_, [&] {
        if (*next == mine[0]) return;
        throw Error(str("replica ", &weights - of_replica.data(), " has a step of ", *next,
                        " batches, replica ", rank_model_.groups().other_samples.here, " one of ",
                        mine[0]));
      });
      weights.insert(weights.end(), next + 1, next + std::ssize(mine));
      next += std::ssize(mine);
    }
  }
  if (!rank_model_.is_last_stage()) return {};
  std::vector<double> all;
  for (const auto& weights : of_replica) all.insert(all.end(), weights.begin(), weights.end());
  return comm::or_fail_at(communicator_, where, [&] { return known_samples(all); });
}

}  // namespace penstock::train
