// The time of a layout's step: its costs for a simulation, and where the time goes.
//
// The planner asks it.  All replicas do the same, so one pipeline is simulated.  Knows no memory
// limit.
// Units: seconds, bytes.
// Model, beside simulate's: gradients of a stage are summed over the replicas while its last
// backward runs, and what takes longer than that is waited for.  With ZeRO 1 and 2 updated
// parameters are gathered after the update, and nothing hides it.  With ZeRO 3 they are gathered
// for the first forward of a stage, or, where they are more than may be whole at one time, for
// every pass; the gather of one layer is waited for, and those of others run beside the pass.
// Files are read and written at their bandwidth: states once a step while they are updated, pieces
// of parameters with each gather, and once a step when they are written.
// Where ranks compute on a node's cores (Network::cores_per_node), cores move the data, too: then
// nothing hides a sum or a gather.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/partition/partition.h"
#include "penstock/plan/choose/layer_times.h"
#include "penstock/plan/choose/layout.h"
#include "penstock/plan/choose/network.h"
#include "penstock/plan/memory/states.h"
#include "penstock/plan/simulate/costs.h"
#include "penstock/verify/verify.h"

namespace penstock::choose {

// All that a step time is made of.
struct StepInputs {
  const Layout& layout;
  const partition::Partition& partition;
  const std::vector<Rank>& homes;  // Ranks of the pipeline by stage.
  const std::vector<LayerTimes>& times;
  const memory::ModelMemory& memory;
  const Network& network;
  memory::Sharing sharing;
  std::int64_t live_page_bytes_max = 0;
  std::int64_t prefetch_bytes = 0;  // How far ahead of a page's use pages are brought.
  // Bytes a second of the device, for the update; 0: not known, no time.
  double memory_bandwidth = 0.0;
  double kernel_s = 0.0;  // The least that one of its kernels takes.
  bool is_fused = false;  // Whether gradients are added and updated as LayersFile::is_fused says.
  // Bytes a second of a rank's files; above 0 where the layout has some.
  double file_bandwidth = 0.0;
};

// The parts of a step's time, which add up to it.
struct StepTime {
  double compute = 0.0;    // Time of the busiest rank.
  double exchanges = 0.0;  // What it waits for ranks that share its layers.
  double bubble = 0.0;     // Waits for other ranks' computations.
  double messages = 0.0;   // Time for messages between stages.
  double gathers = 0.0;    // Time for parameters, of other ranks or in files.
  double sums = 0.0;       // Time for sums of gradients over replicas.
  double update = 0.0;     // The optimizer's step, with what it reads and writes in files.
  double cores = 0.0;      // Waits for cores, where ranks of a node share them (shared_cores.h).

  double step() const {
    return compute + exchanges + bubble + messages + gathers + sums + update + cores;
  }
};

// A pipeline rank's step, and its kernels by kind; these are 0 where nobody knows them, and else
// make up its compute.
struct RankTime {
  StepTime time;
  devices::KernelSeconds kernels;
  // Exchanges along these axes; what is waited is among StepTime::exchanges.
  AxisWait context;
  AxisWait experts;
};

// Costs for simulate, of the layout's stages.
simulate::Costs costs_of(const StepInputs& inputs);

// The time from 0 to the end of the update.
double step_time(const StepInputs& inputs, const verify::VerifiedSchedule& schedule);
// The same, in its parts, of each pipeline rank: a simulation for each part.
std::vector<RankTime> step_parts_by_rank(const StepInputs& inputs,
                                         const verify::VerifiedSchedule& schedule);
// The part of the rank that computes most.
const StepTime& of_busiest(const std::vector<RankTime>& ranks);

}  // namespace penstock::choose
