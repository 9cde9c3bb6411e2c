#include "penstock/plan/render/svg.h"

#include <algorithm>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/text.h"
#include "penstock/core/utf8.h"
#include "penstock/plan/render/number.h"

namespace penstock::render {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::string_view kEllipsis = "\xE2\x80\xA6";
constexpr std::string_view kTypeface = "Helvetica, Arial, 'Liberation Sans', sans-serif";

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// How long the UTF-8 sequence at the start of `text` is; 0 if it is none, or no character of
// XML 1.0.
std::size_t character_length(std::string_view text) {
  const std::size_t length = utf8_length(text);
  const auto first = static_cast<unsigned char>(text[0]);
  const bool is_control = first < 0x20 && first != '\t' && first != '\n' && first != '\r';
  const std::string_view character = text.substr(0, length);
  const bool is_reserved = character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF";
  return is_control || is_reserved ? 0 : length;
}

// Width in units of the font size, after Helvetica; bytes of other characters count as wide
// letters.
double character_width(char c) {
  if (std::string_view("fijlrt.,:;'|!()[]-/ ").find(c) != std::string_view::npos) return 0.33;
  if (std::string_view("mwMW%@").find(c) != std::string_view::npos) return 0.89;
  const bool is_narrower = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  return is_narrower ? 0.57 : 0.72;
}

std::string_view escaped(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    default:
      return {};
  }
}

}  // namespace

Attribute::Attribute(std::string_view attribute, double number)
    : name(attribute), value(rounded(number, 2)) {}

Attribute::Attribute(std::string_view attribute, Colour colour)
    : name(attribute), value(to_string(colour)) {}

Svg::Svg(double width, double height, std::string_view label) {
  const std::string view_box = "0 0 " + rounded(width, 2) + " " + rounded(height, 2);
  open("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
               {"width", width},
               {"height", height},
               {"viewBox", view_box},
               {"role", "img"},
               {"aria-label", label},
               {"font-family", kTypeface},
               {"fill", kInk}});
  // A ground of its own, so that dark viewers show the same picture.
  add("rect", {{"width", width}, {"height", height}, {"rx", 8.0}, {"fill", kPaper}});
}

void Svg::open(std::string_view element, Attributes attributes) {
  start(element, attributes);
  out_ += ">\n";
  open_.emplace_back(element);
}

void Svg::close() {
  PENSTOCK_CHECK(!open_.empty(), "nothing is open");
  const std::string element = std::move(open_.back());
  open_.pop_back();
  out_ += std::string(2 * open_.size(), ' ') + "</" + element + ">\n";
}

void Svg::add(std::string_view element, Attributes attributes) {
  start(element, attributes);
  out_ += "/>\n";
}

void Svg::add(std::string_view element, Attributes attributes, std::string_view tooltip) {
  start(element, attributes);
  out_ += "><title>" + xml_escape(tooltip) + "</title></";
  out_ += element;
  out_ += ">\n";
}

void Svg::text(double x, double y, std::string_view content, Attributes attributes) {
  start("text", {{"x", x}, {"y", y}});
  append(attributes);
  out_ += ">" + xml_escape(content) + "</text>\n";
}

std::string Svg::finish() && {
  close();
  PENSTOCK_CHECK(open_.empty(), open_.size(), " elements are still open");
  return std::move(out_);
}

void Svg::start(std::string_view element, Attributes attributes) {
  out_ += std::string(2 * open_.size(), ' ') + '<';
  out_ += element;
  append(attributes);
}

void Svg::append(Attributes attributes) {
  for (const Attribute& attribute : attributes) {
    out_ += ' ';
    out_ += attribute.name;
    out_ += "=\"" + xml_escape(attribute.value) + '"';
  }
}

std::string xml_escape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_length(text.substr(i));
    const std::string_view escape = escaped(text[i]);
    if (length == 0) {
      out += kReplacement;
    } else {
      out += escape.empty() ? text.substr(i, length) : escape;
    }
    i += std::max<std::size_t>(length, 1);
  }
  return out;
}

double text_width(std::string_view text, double font_size) {
  double width = 0;
  for (const char c : text) width += continues_character(c) ? 0 : character_width(c);
  return width * font_size;
}

std::vector<std::string> wrapped(std::string_view text, double font_size, double width) {
  std::vector<std::string> lines;
  for (const std::string& word : split(text, ' ')) {
    if (!lines.empty() && text_width(lines.back() + ' ' + word, font_size) <= width) {
      lines.back() += ' ' + word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

std::string elided(std::string_view text, double font_size, double width) {
  if (text_width(text, font_size) <= width) return std::string(text);
  std::string_view shorter = text;
  do {
    shorter.remove_suffix(1);
    while (!shorter.empty() && continues_character(text[shorter.size()])) shorter.remove_suffix(1);
  } while (!shorter.empty() &&
           text_width(std::string(shorter) + std::string(kEllipsis), font_size) > width);
  return std::string(shorter) + std::string(kEllipsis);
}

}  // namespace penstock::render
