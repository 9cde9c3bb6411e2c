// `penstock checkpoint merge`: the adapters of a folder, added to a model's weights.
//
// main.cpp calls it.  Knows paths, and no tensors.
#pragma once
#include <string>

namespace penstock::cli {

struct MergeCommand {
  std::string adapters;
  std::string model;
  std::string to;
};

// Returns the process's exit code.  Throws: as hugging_face::merge_adapters().
int run_merge(const MergeCommand& command);

}  // namespace penstock::cli
