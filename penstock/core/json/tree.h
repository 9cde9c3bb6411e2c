// A JSON text as a tree in which every key and every value knows where it was written.
//
// For whoever reads JSON and wants to say where it is wrong: config, and schedules in JSON.  Knows
// no key.  Strict: RFC 8259 plus comments (// and /* */); duplicate keys, a byte order mark, NUL
// bytes, bad UTF-8, texts that are too long and nesting over kDepthMax are refused.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "penstock/core/json/origin.h"

namespace penstock::json {

inline constexpr std::size_t kBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kDepthMax = 64;

// Values are a program's, such as a Python dict.  Line and column say something in a file alone.
enum class SourceKind : std::uint8_t { File, Values, Option };

// The text that values point into; shared by all values that came from it.
struct Source {
  std::string name;  // Name as errors print it: a file, or "--set model.layers=2".
  std::string text;
  SourceKind kind = SourceKind::File;
};

struct Span {
  std::uint32_t begin = 0;  // Byte offset.
  std::uint32_t end = 0;
};

struct Member;

struct Value {
  using Array = std::vector<Value>;
  using Object = std::vector<Member>;  // Members in the order of the text.

  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> data;
  std::shared_ptr<const Source> source;
  Span span;

  bool is_null() const { return std::holds_alternative<std::monostate>(data); }
};

struct Member {
  std::string key;
  Span key_span;  // Place in value.source.
  Value value;
};

// Throws: ParseError at the first place that breaks a rule, with file, line, column and the rule.
// REQUIRES: bytes_max < 2^32.  A tree takes up to 50 bytes a byte of text.
Value parse(std::shared_ptr<const Source> source, std::size_t bytes_max = kBytesMax);

// The value or member with that key; null when there is none.
Member* find(Value::Object& object, std::string_view key);
const Member* find(const Value::Object& object, std::string_view key);

Origin origin_of(const Value& value);
Origin origin_of_key(const Member& member);

// The value's own text, as the user wrote it.
std::string_view text_of(const Value& value);

// The words for "expected ..., found ...": the text of a scalar, or "a list", "an object".
std::string found(const Value& value);

}  // namespace penstock::json
