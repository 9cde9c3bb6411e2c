// The loss behind a stage's layers: a function of whole outputs, or pieces that ranks which share
// the last layer run together.
//
// Stage has one.  Knows no layers and no microbatches.
#pragma once
#include <memory>

#include "penstock/runtime/nn/draw.h"
#include "penstock/runtime/nn/loss.h"
#include "penstock/runtime/stage/loss_run.h"
#include "penstock/runtime/stage/segment_parts.h"
#include "penstock/runtime/stage/untrained.h"

namespace penstock::stage {

// What a loss is computed of, and by.
struct LossCall {
  const nn::Loss& loss;
  const nn::Values& targets;
  nn::DrawPlace place;
  nn::TorchDraws draws;
};

class StageLoss {
 public:
  // Null: nobody shares the last layer; the loss may depend on anything.
  StageLoss(std::shared_ptr<Exchanges> exchanges, std::shared_ptr<Untrained> untrained)
      : exchanges_(std::move(exchanges)), untrained_(std::move(untrained)) {}

  // Whether ranks run it in pieces: then its graph is its own.
  bool is_shared(const nn::Loss& loss) const { return exchanges_ && loss.pieces(); }

  // The loss of outputs, with the graph that they have.
  at::Tensor of(const nn::Values& outputs, const LossCall& call) const;
  // The loss, with a graph that begins at the outputs, which `kept` gets.
  at::Tensor apart(nn::Values outputs, const LossCall& call, KeptParts& kept);
  at::Tensor evaluate(nn::Values outputs, const LossCall& call, SampleSizes& sizes);

 private:
  const LossRun& run_of(const nn::Loss& loss);

  std::shared_ptr<Exchanges> exchanges_;
  std::shared_ptr<Untrained> untrained_;
  std::unique_ptr<const LossRun> run_;  // The last one.
};

}  // namespace penstock::stage
