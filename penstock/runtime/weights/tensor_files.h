// The tensors of a folder's model (weights.h), read one at a time.
//
// hugging_face/ reads a model's weights with it: of safetensors, or where there are none, of what
// torch.save() wrote.  Headers are read when it is made; a tensor's
// bytes go from the file into the tensor's memory, or through a small buffer where the type
// changes.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "penstock/core/box.h"
#include "penstock/files/checkpoint/safetensors_header.h"

namespace penstock::weights {

// F32, F64, BF16 and F16: those that read() takes.
bool is_weight_type(checkpoint::ScalarType type);

class TensorFiles {
 public:
  struct Stored {
    std::string file;  // File in the folder.
    checkpoint::ScalarType type = checkpoint::ScalarType::F32;
    std::vector<std::int64_t> shape;
    std::uint64_t first = 0;  // Byte of the file.
    std::uint64_t bytes = 0;
  };

  // Throws: CheckpointError for a folder without weights, a file that is missing, breaks the format
  // or is quantized, a tensor that the index says a shard holds and it does not, and one that two
  // hold.
  explicit TensorFiles(std::string folder);
  // Has the tensors of one file of it.
  TensorFiles(std::string folder, const std::string& file);

  const std::string& folder() const { return folder_; }
  const std::map<std::string, Stored>& tensors() const { return tensors_; }

  // Reads a box of the tensor of that name, or all of it, into `to`, which is contiguous on the
  // host, as its type.
  // REQUIRES: there is one, whose box has the sizes of `to`, and is_weight_type() of its type.
  // Throws: CheckpointError with the file and the system's reason.
  void read(const std::string& name, at::Tensor& to, const Box& box = {}) const;
  // The whole tensor, of the type that it has there.  REQUIRES, throws: as read().
  at::Tensor whole(const std::string& name) const;
  // The bytes as they are stored.
  std::string bytes_of(const std::string& name, std::uint64_t first, std::uint64_t count) const;

 private:
  void add_file(const std::string& file);

  std::string folder_;
  std::map<std::string, Stored> tensors_;
};

}  // namespace penstock::weights
