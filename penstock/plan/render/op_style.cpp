#include "penstock/plan/render/op_style.h"

namespace penstock::render {

using schedule::Op;

const std::array<OpStyle, schedule::kOps> kOpStyles = {{
    {Op::Forward, "forward", kBlue, kSkyBlue, kBlue, Mark::Plain},
    {Op::Backward, "backward", kOrange, kOrange, kVermilion, Mark::Plain},
    {Op::BackwardInput, "input gradients", kPink, kLightPink, kPink, Mark::Under},
    {Op::BackwardWeight, "weight gradients", kGreen, kLightGreen, kGreen, Mark::Over},
    {Op::SendForward, "send activation", kRule, kRule, kRule, Mark::Plain},
    {Op::RecvForward, "receive activation", kRule, kRule, kRule, Mark::Plain},
    {Op::SendBackward, "send gradient", kRule, kRule, kRule, Mark::Plain},
    {Op::RecvBackward, "receive gradient", kRule, kRule, kRule, Mark::Plain},
    {Op::Unshard, "gather weights", kYellow, kYellow, kYellow, Mark::Plain},
    {Op::Reshard, "drop weights", kYellow, kYellow, kYellow, Mark::Plain},
    {Op::ReduceGradients, "reduce gradients", kFadedInk, kFadedInk, kFadedInk, Mark::Plain},
}};

Colour colour_of(const OpStyle& style, std::size_t shade, std::size_t shades) {
  if (shades == 1) return style.alone;
  return blend(style.first, style.last,
               static_cast<double>(shade) / static_cast<double>(shades - 1));
}

}  // namespace penstock::render
