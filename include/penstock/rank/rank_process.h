// This process as a rank of whatever started it: `penstock launch`, torchrun, Slurm or MPI.
//
// cli/ starts its ranks with it, and C++ users theirs:
//
//   auto communicator = rank::connect_process();  // Alone where nothing started it.
//   train::Trainer trainer({.mesh = {.pipe = communicator->world_size()}}, layers, loss,
//                          *communicator);
//   for (bool is_last = false; !is_last;) {
//     trainer.words().stop = rank::stop_requested().has_value();
//     is_last = trainer.step(input, target).words.stop;  // All ranks, where one is asked.
//   }
//
// From then on the launcher sees where it stands, and says why it fails (presence.h).
// docs/launching.md has the variables of each launcher.  Knows no models.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "penstock/comm/communicator.h"
#include "penstock/launch/environment.h"
#include "penstock/runtime/rank/presence.h"

namespace penstock::rank {

struct ProcessOptions {
  std::string host = {};  // An address of this host, for the others; empty: the launcher's.
  std::string folder =
      {};  // All ranks', where they meet if the launcher names no port; empty: none.
  comm::Transport transport = comm::Transport::Auto;
  c10::Device device = at::kCPU;
};

// Returns when all ranks are there.
// Throws: ConfigError for variables that do not fit each other, and where nothing says how the
// ranks meet; CommError that names the ranks which did not come within `deadline`.
std::unique_ptr<comm::Communicator> connect_process(
    const ProcessOptions& options = {},
    std::chrono::milliseconds deadline = std::chrono::minutes(5));
// The same of a launcher that is known.
std::unique_ptr<comm::Communicator> connect_process(const launch::LauncherEnvironment& self,
                                                    const ProcessOptions& options,
                                                    std::chrono::milliseconds deadline);

}  // namespace penstock::rank
