#include "penstock/plan/render/palette.h"

#include <cmath>
#include <string_view>

namespace penstock::render {
namespace {

double linear(std::uint8_t channel) {
  const double share = channel / 255.0;
  return share <= 0.03928 ? share / 12.92 : std::pow((share + 0.055) / 1.055, 2.4);
}

double luminance(Colour colour) {
  return 0.2126 * linear(colour.red) + 0.7152 * linear(colour.green) + 0.0722 * linear(colour.blue);
}

double contrast(Colour lighter, Colour darker) {
  return (luminance(lighter) + 0.05) / (luminance(darker) + 0.05);
}

std::uint8_t blend(std::uint8_t from, std::uint8_t to, double share) {
  return static_cast<std::uint8_t>(std::lround(from + (to - from) * share));
}

}  // namespace

std::string to_string(Colour colour) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "#";
  for (const std::uint8_t channel : {colour.red, colour.green, colour.blue}) {
    text += kDigits[channel / 16];
    text += kDigits[channel % 16];
  }
  return text;
}

Colour blend(Colour from, Colour to, double share) {
  return {blend(from.red, to.red, share), blend(from.green, to.green, share),
          blend(from.blue, to.blue, share)};
}

Colour text_on(Colour background) {
  return contrast(kPaper, background) > contrast(background, kInk) ? kPaper : kInk;
}

}  // namespace penstock::render
