#include "penstock/runtime/saving/saved_piece.h"

#include <ATen/ops/empty.h>

#include <cstddef>
#include <string>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/runtime/weights/safetensors.h"

namespace penstock::saving {

using train::StatePiece;

namespace {

std::string shape_of(const std::vector<std::int64_t>& shape) {
  return str("[", join(shape, ", "), "]");
}

const checkpoint::Tensor& tensor_of(const checkpoint::Manifest& manifest, const StatePiece& piece) {
  check_fits(manifest, piece);
  return *manifest.find(piece.name, piece.state);
}

}  // namespace

void check_fits(const checkpoint::Manifest& manifest, const StatePiece& piece) {
  const checkpoint::Tensor* const saved = manifest.find(piece.name, piece.state);
  if (saved == nullptr) {
    throw MisfitError(str("the checkpoint has no ", piece.state, " of ", in_quotes(piece.name)));
  }
  if (saved->shape == piece.shape) return;
  throw MisfitError(str("the checkpoint has ", piece.state, " of ", in_quotes(piece.name), " as ",
                        shape_of(saved->shape), ", the model as ", shape_of(piece.shape)));
}

void verify_piece(checkpoint::SavedCheckpoint& saved, const StatePiece& piece,
                  const std::function<void()>& advanced) {
  saved.verify(tensor_of(saved.manifest(), piece), piece.region(), advanced);
}

void read_piece(checkpoint::SavedCheckpoint& saved, const StatePiece& piece,
                const std::function<void()>& advanced) {
  const checkpoint::Tensor& tensor = tensor_of(saved.manifest(), piece);
  const at::ScalarType type = weights::type_of(tensor.type);
  const std::int64_t count = piece.values.numel();
  const bool in_place = piece.values.is_cpu() && piece.values.is_contiguous() &&
                        !piece.values.is_neg() && !piece.values.is_conj() &&
                        piece.values.scalar_type() == type;
  const at::Tensor target = in_place ? piece.values : at::empty({count}, type);
  saved.read(tensor, piece.region(),
             {static_cast<std::byte*>(target.mutable_data_ptr()), target.nbytes()}, advanced);
  if (!in_place) piece.values.copy_(target.view(piece.values.sizes()));
}

}  // namespace penstock::saving
