// One file of weights of a folder that may come from anywhere, read at byte offsets.
//
// Readers of a model's tensors open it for its header, and again for tensors.  Knows no folders and
// no torch.  Units: bytes.  Thread safety: reads may overlap.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "penstock/core/foreign_file.h"
#include "penstock/files/checkpoint/safetensors_header.h"

namespace penstock::checkpoint {

class WeightsFile {
 public:
  // Throws: CheckpointError for what cannot be read or is no regular file.
  explicit WeightsFile(std::string path);

  // The header of a file of safetensors.
  // Throws: CheckpointError for a file that breaks the format; what it is instead is said where
  // that is known, such as a pointer of Git LFS.
  ParsedHeader read_header() const;

  std::uint64_t bytes() const { return opened_.bytes; }
  // Fills `to` from byte `first` on.
  // Throws: CheckpointError where the file ends before, or the system refuses.
  void read(std::uint64_t first, std::span<std::byte> to) const;

 private:
  std::string begin(std::uint64_t count) const;

  std::string path_;
  ForeignFile opened_;
};

}  // namespace penstock::checkpoint
