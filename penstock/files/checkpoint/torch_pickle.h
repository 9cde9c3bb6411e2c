// The tensors that a pickle of torch.save() names: a dictionary of them, and nothing else.
//
// torch_file.h reads one out of an archive.  Of pickle's operations it has those that such a
// dictionary is written with.  Nothing is imported and nothing is called: the few names that may
// stand there are known, and any other one is an error.  Knows no files and no torch.
// Source: pickletools of Python; torch/_utils.py and torch/serialization.py of torch 2.13.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/files/checkpoint/safetensors_header.h"

namespace penstock::checkpoint {

struct PickledTensor {
  std::string name;
  ScalarType type = ScalarType::F32;
  std::string storage;     // Name of the file in the archive that has its elements.
  std::int64_t first = 0;  // Place of its first element there.
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

// Throws: CheckpointError, which says `path`, for an operation, a name or a value that a dictionary
// of tensors has not, and for a pickle that is cut off.
std::vector<PickledTensor> unpickle_tensors(std::string_view pickle, const std::string& path);

}  // namespace penstock::checkpoint
