// The tensors of a file of torch.save(), such as pytorch_model.bin, and where their bytes are.
//
// weights/ reads models with it that have no safetensors.  Such a file is an archive of zip without
// compression: a pickle that names tensors (torch_pickle.h), and a file for the elements of each.
// Strict: what is no dictionary of whole tensors is an error.  Knows no torch.
// Units: bytes.  Source: APPNOTE.TXT of PKWARE, 4.3; torch/serialization.py of torch 2.13.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/files/checkpoint/safetensors_header.h"

namespace penstock::checkpoint {

inline constexpr std::string_view kTorchModelName = "pytorch_model.bin";
inline constexpr std::string_view kTorchIndexName = "pytorch_model.bin.index.json";

// Bytes of a file, as many as asked for, from `first` on, which are there.
using ReadBytes = std::function<std::string(std::uint64_t first, std::uint64_t count)>;

// The tensors of a file of `bytes` bytes, in the order of their names; offsets are from its begin.
// Throws: CheckpointError, which says `path`, for whatever is not as torch.save() writes a
// dictionary of tensors that are contiguous.
std::vector<HeaderEntry> torch_tensors(const ReadBytes& read, std::uint64_t bytes,
                                       const std::string& path);

}  // namespace penstock::checkpoint
