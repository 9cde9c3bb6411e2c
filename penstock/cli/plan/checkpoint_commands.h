// What the subcommands of `penstock checkpoint` share: their options, and which checkpoint a path
// means.
//
// checkpoint.cpp declares all and looks at checkpoints; checkpoint_copies.cpp writes new files of
// one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/files/checkpoint/checkpoint_directory.h"

namespace penstock::cli {

struct CheckpointCommand {
  std::string path;
  std::string other;  // The second one of diff; where export and import write; merge's model.
  std::string to;     // The folder that merge makes.
  checkpoint::Keep keep;
  std::string type = "as-saved";
  std::string shard_bytes_max = "5GB";
  bool adapters = false;  // Alone.
  bool json = false;
};

// The first of checkpoints_at().  Throws: likewise.
std::string newest_at(const std::string& path);

int run_export(const CheckpointCommand& command);

}  // namespace penstock::cli
