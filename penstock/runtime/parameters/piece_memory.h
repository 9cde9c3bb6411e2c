// The memory of the pieces of pages: beside what the rank computes with, in host memory or in a
// file.
//
// ParameterShards have one for their pages, which copy from it when they come.  In a file a piece
// is in the process's memory only while it is copied or updated.  Knows no pages.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "penstock/runtime/offload/mapped_file.h"
#include "penstock/runtime/offload/place.h"

namespace penstock::parameters {

class PieceMemory {
 public:
  // Throws: ConfigError, for a folder that cannot be used.
  explicit PieceMemory(const offload::Where& where);

  // The next piece, of zeros; `options` are of what the rank computes with.
  // Throws: ConfigError, if the folder has no room for it.
  at::Tensor zeros(std::int64_t elements, const at::TensorOptions& options);

  // Tells the file that a piece will, or will not, be used soon; without a file nothing.
  void read_ahead(const at::Tensor& piece) const;
  void let_go(const at::Tensor& piece);

  // The file with the pieces, or null.
  offload::MappedFile* file() { return file_ ? &*file_ : nullptr; }
  std::int64_t file_bytes() const { return file_ ? file_->bytes() : 0; }

 private:
  offload::Place place_;
  std::optional<offload::MappedFile> file_;
};

}  // namespace penstock::parameters
