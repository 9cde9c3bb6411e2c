#include "penstock/zero/piece_memory.h"

#include "penstock/comm/host_copy.h"

namespace penstock::zero {

PieceMemory::PieceMemory(const offload::Where& where, std::int64_t bytes) : place_(where.place) {
  if (place_ == offload::Place::File) file_.emplace("parameters", where.folder, bytes);
}

at::Tensor PieceMemory::keep(const at::Tensor& row) {
  switch (place_) {
    case offload::Place::Device:
      return row.clone();
    case offload::Place::Host:
      return comm::host_copy(row, comm::Bytes::Out);
    case offload::Place::File:
      break;
  }
  at::Tensor piece = file_->tensor(kept_, row).copy_(row);
  kept_ += static_cast<std::int64_t>(piece.nbytes());
  let_go(piece);
  return piece;
}

void PieceMemory::read_ahead(const at::Tensor& piece) const {
  if (file_) file_->read_ahead(file_->bytes_of(piece));
}

void PieceMemory::let_go(const at::Tensor& piece) {
  if (file_) file_->let_go(file_->bytes_of(piece));
}

}  // namespace penstock::zero
