#include "penstock/runtime/parameters/piece_memory.h"

#include <ATen/ops/zeros.h>

#include "penstock/runtime/comm/host_copy.h"
#include "penstock/runtime/offload/system_memory.h"

namespace penstock::parameters {

PieceMemory::PieceMemory(const offload::Where& where) : place_(where.place) {
  if (place_ == offload::Place::File) file_.emplace("parameters", where.folder);
}

at::Tensor PieceMemory::zeros(std::int64_t elements, const at::TensorOptions& options) {
  switch (place_) {
    case offload::Place::Device:
      return offload::zeros_of_system({elements}, options);
    case offload::Place::Host:
      return comm::host_copy(at::zeros({elements}, options), comm::Bytes::Out);
    case offload::Place::File:
      break;
  }
  return file_->append(at::zeros({elements}, options.device(at::kMeta)));
}

void PieceMemory::read_ahead(const at::Tensor& piece) const {
  if (file_) file_->read_ahead(file_->bytes_of(piece));
}

void PieceMemory::let_go(const at::Tensor& piece) {
  if (file_) file_->let_go(file_->bytes_of(piece));
}

}  // namespace penstock::parameters
