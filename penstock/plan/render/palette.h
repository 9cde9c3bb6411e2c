// The colours of the drawings, and which text is readable on them.
//
// Shared by the pictures of render/.  Knows no picture.
// Source: the data colours are of Okabe and Ito, Color Universal Design (2008), which the usual
// kinds of colour blindness tell apart; single blue and orange differ in grey print, too.
#pragma once
#include <cstdint>
#include <string>

namespace penstock::render {

struct Colour {
  std::uint8_t red = 0;
  std::uint8_t green = 0;
  std::uint8_t blue = 0;
  friend bool operator==(const Colour&, const Colour&) = default;
};

inline constexpr Colour kSkyBlue{0x56, 0xB4, 0xE9};
inline constexpr Colour kBlue{0x00, 0x72, 0xB2};
inline constexpr Colour kOrange{0xE6, 0x9F, 0x00};
inline constexpr Colour kVermilion{0xD5, 0x5E, 0x00};
inline constexpr Colour kPink{0xCC, 0x79, 0xA7};  // Their "reddish purple".
inline constexpr Colour kLightPink{0xE6, 0xBC, 0xD3};
inline constexpr Colour kGreen{0x00, 0x9E, 0x73};  // Their "bluish green".
inline constexpr Colour kLightGreen{0x7F, 0xCE, 0xB9};
inline constexpr Colour kYellow{0xF0, 0xE4, 0x42};

inline constexpr Colour kPaper{0xFF, 0xFF, 0xFF};
inline constexpr Colour kInk{0x1F, 0x24, 0x30};
inline constexpr Colour kFadedInk{0x5B, 0x64, 0x72};
inline constexpr Colour kRule{0xC9, 0xCF, 0xD8};
inline constexpr Colour kFaintRule{0xE1, 0xE5, 0xEB};
inline constexpr Colour kShade{0xF4, 0xF5, 0xF8};

// "#0072b2".
std::string to_string(Colour colour);

// `from` at share 0, `to` at share 1, even steps between.
Colour blend(Colour from, Colour to, double share);

// kPaper or kInk, whichever has the greater contrast (WCAG 2.1, 1.4.3) on `background`.
Colour text_on(Colour background);

}  // namespace penstock::render
