// What a Trainer does otherwise with ZeRO: its hooks, what it updates, parameters that come and go.
#include <algorithm>

#include "penstock/execute/invariant_gradients.h"
#include "penstock/train/paged_run.h"
#include "penstock/train/trainer.h"
#include "penstock/zero/paged_hooks.h"

namespace penstock::train {

// Where ranks compute on the host, what is in its memory is nowhere else.
bool Trainer::has_pieces_elsewhere() const {
  const offload::Place place = options_.offload.parameters.place;
  return place == offload::Place::File ||
         (place == offload::Place::Host && !options_.device.is_cpu());
}

// What a program's instructions need may have to come from a file.
execute::Files Trainer::files_in_programs() const {
  return options_.offload.parameters.place == offload::Place::File ? execute::Files::Used
                                                                   : execute::Files::NotUsed;
}

std::int64_t Trainer::offloaded_bytes() const {
  std::int64_t bytes = offloaded_ ? offloaded_->file_bytes() : 0;
  for (const auto& shards : shards_) bytes += shards->file_bytes();
  return bytes;
}

// Of the next stage: with ZeRO, a layer's parameters move into shards before the next is made.
stage::Making Trainer::making() {
  stage::Making making{.device = options_.device};
  if (options_.precision.is_short()) making.type = options_.precision.type;
  making.after_layer = [this](const auto&) { progress_.advance(); };
  if (options_.zero.stage == ZeroStage::Off) return making;
  if (options_.mesh.data == 1 && !has_pieces_elsewhere()) return making;
  const bool paged = options_.zero.stage == ZeroStage::Parameters;
  const zero::Kept keeps = paged ? zero::Kept(zero::Keeps::Piece, options_.offload.parameters)
                                 : zero::Kept(zero::Keeps::Whole);
  shards_.push_back(std::make_unique<zero::ParameterShards>(
      *data_group_, options_.zero.bucket_bytes, keeps, &tied_pages_));
  making.after_layer = [this, paged](const std::vector<nn::ModelParameter>& parameters) {
    progress_.advance();
    for (const nn::ModelParameter& each : parameters) {
      const bool stays = !paged || persistence_.stays(each.name, each.tensor.numel());
      if (stays && !each.tensor.requires_grad()) continue;  // It is whole, and not updated.
      if (each.is_tied) tied_pages_.try_emplace(each.name);
      shards_.back()->add({each.name, each.tensor},
                          stays ? zero::Keeps::Whole : zero::Keeps::Piece);
    }
  };
  return making;
}

void Trainer::build_pager() {
  std::vector<std::shared_ptr<zero::Page>> pages;
  for (const auto& shards : shards_) {
    for (const auto& page : shards->pages()) {
      if (std::ranges::find(pages, page) == pages.end()) pages.push_back(page);
    }
  }
  const bool all_stay =
      std::ranges::none_of(pages, [](const auto& page) { return page->may_go(); });
  if (all_stay) return;
  pager_ = std::make_unique<zero::Pager>(*data_group_, std::move(pages), options_.zero.limits);
}

std::unique_ptr<execute::StageHooks> Trainer::make_hooks(std::size_t s) {
  stage::Stage& stage = stages_[s];
  if (options_.sums == GradientSums::Invariant) {
    return std::make_unique<execute::InvariantGradients>(stage, communicator_, data_group_->group(),
                                                         options_.mesh.data);
  }
  if (!is_sharded()) {
    return std::make_unique<execute::GradientReducer>(
        stage.parameters(), *data_group_, execute::kBucketBytes, options_.precision.sums);
  }
  if (pager_) {
    return std::make_unique<zero::PagedHooks>(*shards_[s], *pager_, options_.precision.sums);
  }
  const bool keeps = options_.zero.stage == ZeroStage::OptimizerStates;
  return std::make_unique<zero::ShardedGradients>(
      *shards_[s], keeps ? zero::GradientBuckets::Kept : zero::GradientBuckets::Released,
      options_.precision.sums);
}

// A stage's copies of tied parameters, as this rank updates them: whole, or its slices.
std::vector<nn::TiedParameter> Trainer::updated_copies(std::size_t stage) const {
  std::vector<nn::TiedParameter> copies;
  for (const nn::TiedParameter& tied : stages_[stage].tied()) {
    if (!tied.copy.requires_grad()) continue;
    if (!is_sharded()) {
      copies.push_back(tied);
      continue;
    }
    const std::vector<stage::NamedParameter>& all = shards_[stage]->parameters();
    const auto copy = std::ranges::find_if(
        all, [&](const stage::NamedParameter& each) { return each.tensor.is_same(tied.copy); });
    const auto number = static_cast<std::size_t>(copy - all.begin());
    const zero::ShardSlice* slice = shards_[stage]->slice_of(number);
    if (slice == nullptr) continue;
    copies.push_back(tied);
    copies.back().copy = slice->values;
  }
  return copies;
}

// Parameters that are spread over the ranks come and go in the meantime.
execute::StepResult Trainer::run(execute::Executor& executor, const char* name,
                                 execute::StepInputs inputs) {
  const execute::FilesMark files(progress_, files_in_programs());
  for (nn::Values& each : inputs.inputs) each = options_.precision.inputs(each);
  if (!pager_) return executor.run(inputs);
  return in_paged_run(
      communicator_, *pager_, name, [&] { return executor.run(inputs); },
      [&] { pager_->abandon_run(); });
}

Trainer::WholeParameters::WholeParameters(Trainer& trainer) : trainer_(trainer) {
  if (!trainer_.pager_) return;
  const execute::WaitMark wait(trainer_.progress_, "gathering whole parameters");
  for (const auto& shards : trainer_.shards_) {
    shards->unshard();
    trainer_.progress_.advance();
  }
}

Trainer::WholeParameters::~WholeParameters() {
  if (!trainer_.pager_) return;
  try {
    for (const auto& shards : trainer_.shards_) shards->reshard();
  } catch (...) {
    trainer_.pager_->note(std::current_exception());
  }
}

}  // namespace penstock::train
