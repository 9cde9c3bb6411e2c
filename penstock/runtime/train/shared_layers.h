// Whether the layers of a model fit together where ranks share them: whether each takes what the
// one before gives, skips and the loss too.
//
// A Trainer asks before a layer is made, and proves then that all exchanges and messages of a step
// can run.  So does `penstock verify` of a configuration.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/mesh/mesh.h"
#include "penstock/nn/layer.h"
#include "penstock/partition/partition.h"
#include "penstock/plan/lower/stage_exchanges.h"
#include "penstock/runtime/stage/stage.h"
#include "penstock/verify/verify.h"

namespace penstock::train {

// Throws: ConfigError that lists what is wrong, by layer; one for a model no layer of which has
// pieces, so that nothing would be shared.
void check_shared_layers(const std::vector<nn::LayerSpec>& model, const nn::Loss& loss);

// Makes a layer of each kind as the first of so many ranks has it, without memory.
// Throws: ConfigError where they cannot share it.
void check_shares(const std::vector<nn::LayerSpec>& model, std::int64_t ranks);

// What ranks exchange in the passes of each stage, where they share layers.
std::vector<lower::StageExchanges> exchanges_of_stages(const std::vector<nn::LayerSpec>& model,
                                                       const nn::Loss& loss,
                                                       const partition::Partition& partition,
                                                       const stage::Checkpointing& checkpointing);

// Proves it for the ranks of one replica: others do the same, and have no part in it.
// Throws: ScheduleError that says which ranks would wait, and where (lower/exchange_proof.h).
void prove_exchanges(const verify::VerifiedSchedule& schedule,
                     const std::vector<lower::StageExchanges>& stages, const mesh::Shape& mesh);

}  // namespace penstock::train
