// A loss that ranks which share the last layer compute together, in pieces, with exchanges between.
//
// Stage runs one behind its layers.  Knows no layers and no microbatches.
#pragma once
#include <memory>
#include <vector>

#include "penstock/runtime/nn/loss.h"
#include "penstock/runtime/stage/segment_parts.h"

namespace penstock::stage {

class Untrained;

class LossRun {
 public:
  LossRun(std::shared_ptr<const nn::LossPieces> loss, const std::shared_ptr<Exchanges>& ranks);

  const std::shared_ptr<const nn::LossPieces>& loss() const { return loss_; }

  // The loss, with its graph: `outputs` have none, and no memory of theirs is kept but by the
  // pieces.  `untrained`, unless it is null, looks at each piece's graph.
  at::Tensor forward(nn::Values outputs, const nn::Values& targets, const Untrained* untrained,
                     KeptParts& kept) const;
  at::Tensor evaluate(nn::Values outputs, const nn::Values& targets, SampleSizes& sizes) const;

 private:
  nn::Values run_piece(std::size_t piece, const nn::Values& values) const;

  std::shared_ptr<const nn::LossPieces> loss_;
  std::shared_ptr<nn::SharedLoss> shared_;
  std::shared_ptr<const Borders> borders_;  // Borders behind each piece.
};

}  // namespace penstock::stage
