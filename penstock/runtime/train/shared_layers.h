// Whether the layers of a model fit together where ranks share them: whether each takes what the
// one before gives, skips and the loss too.
//
// A Trainer asks before a layer is made, and proves then that all exchanges and messages of a step
// can run.  So does `penstock verify` of a configuration.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/mesh/mesh.h"
#include "penstock/nn/layer.h"
#include "penstock/partition/partition.h"
#include "penstock/plan/lower/stage_exchanges.h"
#include "penstock/runtime/stage/stage.h"
#include "penstock/train/trainer_options.h"
#include "penstock/verify/verify.h"

namespace penstock::train {

// Throws: ConfigError that lists what is wrong, by layer; one for a model no layer of which has
// pieces, so that nothing would be shared.
void check_shared_layers(const std::vector<nn::LayerSpec>& model, const nn::Loss& loss);
// The same for ranks with these options; nothing is wrong where each has whole layers.
// Throws: the same; where sums are invariant, ConfigError that lists why ranks which share layers
// could not have the bits of one rank.  Whether widths fit, layers say when they are made.
void check_shared_layers(const TrainerOptions& options, const std::vector<nn::LayerSpec>& model,
                         const nn::Loss& loss);

// The blocks of a rank in which its layers add what ranks share, for sums that are invariant;
// absent: sums are not, or not within layers: short types and devices have the bits of one rank
// alone.
std::optional<std::int64_t> blocks_of_layers(const TrainerOptions& options);

// The loss of a rank that has whole layers, for sums that are invariant: that of ranks which share
// them, if it has pieces.
nn::Loss loss_in_blocks(nn::Loss loss);

// Makes a layer of each kind as the first of so many ranks has it, without memory.  `blocks`: as
// blocks_of_layers().
// Throws: ConfigError where they cannot share it.
void check_shares(const std::vector<nn::LayerSpec>& model, std::int64_t ranks,
                  std::optional<std::int64_t> blocks);

// What ranks exchange in the passes of each stage, where they share layers.
std::vector<lower::StageExchanges> exchanges_of_stages(const std::vector<nn::LayerSpec>& model,
                                                       const nn::Loss& loss,
                                                       const partition::Partition& partition,
                                                       const stage::Checkpointing& checkpointing,
                                                       GradientSums sums);

// Proves it for the ranks of one replica: others do the same, and have no part in it.
// Throws: ScheduleError that says which ranks would wait, and where (lower/exchange_proof.h).
void prove_exchanges(const verify::VerifiedSchedule& schedule,
                     const std::vector<lower::StageExchanges>& stages, const mesh::Shape& mesh);

}  // namespace penstock::train
