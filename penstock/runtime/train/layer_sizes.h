// Counts how many parameters each layer has, by the ranks together: those that are likely to have a
// layer make it for that, and nobody else does.
//
// A Trainer cuts its model into stages by that.  Knows no stages: it is told who is likely.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/partition/partition.h"
#include "penstock/runtime/nn/model.h"

namespace penstock::train {

// Whether all of them are known.
bool are_counted(const std::vector<nn::LayerSpec>& layers);

// Cuts layers into stages.  A loss that is a layer is of the last stage, whatever the method makes
// of the others.
partition::Partition partition_of(const std::vector<nn::LayerSpec>& layers, std::int32_t stages,
                                  const partition::Method& method);

// Collective over all ranks.  Fills in the counts that are not known yet.  `likely`: the layers
// that this rank counts.  REQUIRES: some rank counts each, and replicas count the same at one time,
// so that nobody waits for another one's files. Throws: whatever a function that makes a layer
// throws, on every rank.
void count_together(std::vector<nn::LayerSpec>& layers, const std::set<std::int64_t>& likely,
                    nn::LayerMaker& maker, nn::AfterCount after, comm::Communicator& communicator);

}  // namespace penstock::train
