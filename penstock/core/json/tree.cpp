#include "penstock/core/json/tree.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/json/tokens.h"
#include "penstock/core/stand_in.h"
#include "penstock/core/text.h"
#include "penstock/core/utf8.h"

namespace penstock::json {
namespace {

Origin locate(const Source& source, std::size_t offset) {
  if (source.kind != SourceKind::File) return {source.name, 0, 0};
  Origin origin{source.name, 1, 1};
  for (const char c : std::string_view(source.text).substr(0, offset)) {
    const bool continues_character = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
    if (c == '\n') {
      ++origin.line;
      origin.column = 1;
    } else if (!continues_character) {
      ++origin.column;
    }
  }
  return origin;
}

[[noreturn]] void refuse(const Source& source, std::size_t offset, const std::string& why) {
  throw ParseError(str(to_string(locate(source, offset)), ": ", why));
}

// Rules on the bytes, which the library does not check or checks only inside strings.
void check_bytes(const Source& source, std::size_t bytes_max) {
  const std::string_view text = source.text;
  if (text.size() > bytes_max) {
    throw ParseError(
        str(source.name, ": larger than ", bytes_max, " bytes; is it the right file?"));
  }
  if (const std::string_view other = stand_in(text); !other.empty()) {
    refuse(source, 0, str("no JSON: ", other));
  }
  if (const auto fault = find_no_text(text)) {
    refuse(source, fault->offset, std::string(fault->why));
  }
}

// Receives the library's events in the order of the text and builds the tree.
class TreeBuilder {
 public:
  explicit TreeBuilder(std::shared_ptr<const Source> source) : source_(std::move(source)) {}

  Value take() { return std::move(root_); }

  bool null() { return add(std::monostate{}); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value) {
    if (value > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      return add(static_cast<double>(value));
    }
    return add(static_cast<std::int64_t>(value));
  }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // Only binary formats have it.

  bool start_object(std::size_t) { return open(Value::Object{}); }
  bool start_array(std::size_t) { return open(Value::Array{}); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& key) {
    const Span span = next_token();
    if (!open_.back().keys.insert(key).second) {
      refuse(*source_, span.begin, str("duplicate key ", in_quotes(key)));
    }
    auto& members = std::get<Value::Object>(open_.back().value.data);
    members.push_back({std::move(key), span, {}});
    return true;
  }

  bool parse_error(std::size_t read, const std::string&, const nlohmann::json::exception& error) {
    const SyntaxError wrong = describe_syntax_error(source_->text, end_, read, error.what());
    refuse(*source_, wrong.offset, wrong.text);
  }

 private:
  struct Open {
    Value value;
    // Keys so far, so that a file of many keys takes linear time.
    std::unordered_set<std::string> keys;
  };

  Span next_token() {
    const std::size_t begin = skip_gap(source_->text, end_).end;
    end_ = token_end(source_->text, begin);
    return {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end_)};
  }

  template <class Data>
  Value make(Data data) {
    return {.data = std::move(data), .source = source_, .span = next_token()};
  }

  template <class Data>
  bool add(Data data) {
    attach(make(std::move(data)));
    return true;
  }

  template <class Data>
  bool open(Data data) {
    open_.push_back({make(std::move(data)), {}});
    if (open_.size() > kDepthMax) {
      refuse(*source_, open_.back().value.span.begin, str("nested deeper than ", kDepthMax));
    }
    return true;
  }

  bool close() {
    Value value = std::move(open_.back().value);
    value.span.end = next_token().end;
    open_.pop_back();
    attach(std::move(value));
    return true;
  }

  void attach(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (auto* array = std::get_if<Value::Array>(&open_.back().value.data)) {
      array->push_back(std::move(value));
    } else {
      std::get<Value::Object>(open_.back().value.data).back().value = std::move(value);
    }
  }

  std::shared_ptr<const Source> source_;
  std::vector<Open> open_;
  Value root_;
  std::size_t end_ = 0;  // End of the last token.
};

template <class Object>
auto* find_in(Object& object, std::string_view key) {
  const auto same = [key](const Member& member) { return member.key == key; };
  const auto at = std::find_if(object.begin(), object.end(), same);
  return at == object.end() ? nullptr : &*at;
}

}  // namespace

Value parse(std::shared_ptr<const Source> source, std::size_t bytes_max) {
  check_bytes(*source, bytes_max);
  TreeBuilder builder(source);
  try {
    constexpr auto format = nlohmann::json::input_format_t::json;
    nlohmann::json::sax_parse(source->text, &builder, format, /*strict=*/true,
                              /*ignore_comments=*/true);
  } catch (const nlohmann::json::exception& error) {
    throw ParseError(str(source->name, ": ", error.what()));
  }
  return builder.take();
}

Member* find(Value::Object& object, std::string_view key) { return find_in(object, key); }

const Member* find(const Value::Object& object, std::string_view key) {
  return find_in(object, key);
}

Origin origin_of(const Value& value) { return locate(*value.source, value.span.begin); }

Origin origin_of_key(const Member& member) {
  return locate(*member.value.source, member.key_span.begin);
}

std::string_view text_of(const Value& value) {
  return std::string_view(value.source->text)
      .substr(value.span.begin, value.span.end - value.span.begin);
}

std::string found(const Value& value) {
  if (std::holds_alternative<Value::Array>(value.data)) return "a list";
  if (std::holds_alternative<Value::Object>(value.data)) return "an object";
  if (const auto* string = std::get_if<std::string>(&value.data)) return in_quotes(*string);
  return std::string(text_of(value).substr(0, 40));
}

}  // namespace penstock::json
