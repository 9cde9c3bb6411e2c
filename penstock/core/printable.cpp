#include "penstock/core/printable.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

#include "penstock/core/utf8.h"

namespace penstock {
namespace {

struct Range {
  std::uint32_t first, last;
};

constexpr std::array<Range, 5> kSteering = {{
    {0x00, 0x1F},      // C0.
    {0x7F, 0x9F},      // DEL and C1.
    {0x2028, 0x2029},  // Separators of lines and paragraphs.
    {0x202A, 0x202E},  // Embeddings and overrides of direction.
    {0x2066, 0x2069},  // Isolates.
}};

// Decodes a character of at most three bytes: no character of kSteering has four.
std::uint32_t code_point(std::string_view text, std::size_t length) {
  const auto byte = [&](std::size_t i) {
    return std::uint32_t{static_cast<unsigned char>(text[i])};
  };
  if (length == 1) return byte(0);
  if (length == 2) return ((byte(0) & 0x1F) << 6) | (byte(1) & 0x3F);
  return ((byte(0) & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F);
}

bool is_plain(char c) { return c == '\n' || c == '\t' || (c >= ' ' && c <= '~'); }

}  // namespace

std::string spelt_out(std::string_view text, std::size_t length) {
  if (length > 3) return {};
  const std::uint32_t code = code_point(text, length);
  const auto has = [code](const Range& range) { return code >= range.first && code <= range.last; };
  if (std::ranges::none_of(kSteering, has)) return {};
  char escape[8];
  std::snprintf(escape, sizeof escape, "\\u%04x", code);
  return escape;
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    if (is_plain(text[i])) {
      out += text[i++];
      continue;
    }
    const std::size_t length = utf8_length(text.substr(i));
    const std::string escape = length == 0 ? "\xEF\xBF\xBD" : spelt_out(text.substr(i), length);
    out += escape.empty() ? text.substr(i, length) : std::string_view(escape);
    i += std::max<std::size_t>(length, 1);
  }
  return out;
}

}  // namespace penstock
