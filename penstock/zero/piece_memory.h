// Where the pieces of pages are: beside what the rank computes with, in host memory or in a file.
//
// ParameterShards have one for their pages, which copy from it when they come.  In a file a piece
// is in the process's memory only while it is copied or updated.  Knows no pages.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "penstock/offload/mapped_file.h"
#include "penstock/offload/place.h"

namespace penstock::zero {

class PieceMemory {
 public:
  // Of pieces that take so many bytes in all, each a multiple of offload::kAlignment.
  // Throws: ConfigError, for a folder that cannot be used or has no room for them.
  PieceMemory(const offload::Where& where, std::int64_t bytes);

  // The next piece, with the values of `row`.
  at::Tensor keep(const at::Tensor& row);

  // As of a file, whose pieces will, or will not, be used soon; nothing where there is none.
  void read_ahead(const at::Tensor& piece) const;
  void let_go(const at::Tensor& piece);

  // That they are in, or null.
  offload::MappedFile* file() { return file_ ? &*file_ : nullptr; }

 private:
  offload::Place place_;
  std::int64_t kept_ = 0;  // Bytes.
  std::optional<offload::MappedFile> file_;
};

}  // namespace penstock::zero
