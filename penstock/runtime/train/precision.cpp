#include "penstock/runtime/train/precision.h"

#include <c10/core/ScalarType.h>

#include <utility>

#include "penstock/core/text.h"

namespace penstock::train {
namespace {

const char* name_of(at::ScalarType type) {
  if (type == at::kBFloat16) return "bf16";
  return type == at::kHalf ? "fp16" : "float";
}

nn::Values with_floats_in(at::ScalarType type, nn::Values values) {
  for (at::Tensor& value : values) {
    if (value.defined() && value.is_floating_point()) value = value.to(type);
  }
  return values;
}

// A loss in pieces that gets outputs in float.
class SharedLossOfFloats : public nn::SharedLoss {
 public:
  explicit SharedLossOfFloats(std::shared_ptr<nn::SharedLoss> loss) : loss_(std::move(loss)) {}
  nn::Values run_piece(std::size_t piece, const nn::Values& values) const override {
    return loss_->run_piece(piece, piece == 0 ? with_floats_in(at::kFloat, values) : values);
  }

 private:
  std::shared_ptr<nn::SharedLoss> loss_;
};

nn::LossPieces with_floats(nn::LossPieces pieces) {
  pieces.make = [make = std::move(pieces.make)](const partition::Share& share) {
    return std::make_shared<SharedLossOfFloats>(make(share));
  };
  return pieces;
}

}  // namespace

std::string Precision::describe() const {
  const bool apart = sum_type() != type;
  return str(name_of(type), apart ? ", gradients added in " : "", apart ? name_of(sum_type()) : "");
}

nn::Values Precision::inputs(const nn::Values& values) const {
  return is_short() ? with_floats_in(type, values) : values;
}

nn::Loss Precision::loss(nn::Loss loss) const {
  if (!is_short() || !loss || loss.takes_any_type()) return loss;
  const std::shared_ptr<const nn::LossPieces> pieces = loss.pieces();
  nn::Loss of_floats = [loss = std::move(loss)](const nn::Values& outputs,
                                                const nn::Values& targets) {
    return loss(with_floats_in(at::kFloat, outputs), targets);
  };
  return pieces ? std::move(of_floats).in_pieces(with_floats(*pieces)) : of_floats;
}

Precision make_precision(const config::Config& config) {
  const auto& sums = config.data_types.grad_accum_dtype;
  Precision precision;
  if (config.bf16.enabled) precision.type = at::kBFloat16;
  if (config.fp16.enabled) precision.type = at::kHalf;
  if (sums == config::DataType::Fp32) precision.sums = at::kFloat;
  precision.gradient_scale = config.fp16;
  return precision;
}

}  // namespace penstock::train
