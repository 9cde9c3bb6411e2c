// Writes one SVG picture: elements, attributes, escaped text.
//
// The drawings of render/ are made with it.  It knows the syntax, and no chart.
// Units: pixels at the picture's own size; coordinates are rounded to two decimals.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/plan/render/palette.h"

namespace penstock::render {

struct Attribute {
  Attribute(std::string_view attribute, std::string_view text) : name(attribute), value(text) {}
  Attribute(std::string_view attribute, const char* text) : name(attribute), value(text) {}
  Attribute(std::string_view attribute, double number);
  Attribute(std::string_view attribute, Colour colour);

  std::string_view name;
  std::string value;
};

using Attributes = std::initializer_list<Attribute>;

class Svg {
 public:
  // `label` says what the picture shows to those who cannot see it.
  Svg(double width, double height, std::string_view label);

  // An element that the following ones go into, until close().
  void open(std::string_view element, Attributes attributes);
  void close();

  void add(std::string_view element, Attributes attributes);
  // Adds an element with a text that viewers show while the pointer rests on it.
  void add(std::string_view element, Attributes attributes, std::string_view tooltip);
  // `y` is the base line.
  void text(double x, double y, std::string_view content, Attributes attributes = {});

  // REQUIRES: as many close() as open().
  std::string finish() &&;

 private:
  void start(std::string_view element, Attributes attributes);
  void append(Attributes attributes);

  std::string out_;
  std::vector<std::string> open_;
};

// Escapes text and attribute values.  Bytes that are not UTF-8, and what XML has no character for,
// become U+FFFD.
std::string xml_escape(std::string_view text);

// How wide `text` is in the pictures' typeface, roughly: viewers have different ones.
double text_width(std::string_view text, double font_size);

// Breaks `text` at spaces into lines that are no wider than `width`, if its words allow.
std::vector<std::string> wrapped(std::string_view text, double font_size, double width);

// `text`, or as much of its beginning as fits into `width`, and an ellipsis.
std::string elided(std::string_view text, double font_size, double width);

}  // namespace penstock::render
