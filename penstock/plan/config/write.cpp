#include "penstock/plan/config/write.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "penstock/plan/config/fields.h"
#include "penstock/plan/config/keys.h"
#include "penstock/plan/config/path_visitor.h"
#include "penstock/plan/config/wording.h"

namespace penstock::config {
namespace {

template <class Kind, class T>
bool left_out(const Kind&, const T&) {
  return false;
}
bool left_out(const Text& kind, const std::string& value) {
  return !kind.may_be_empty && value.empty();
}

// An option's text may hold anything, and a comment ends with its line.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
}

// Visitor: a line for each field, commented when there are origins.
class Writer : public PathVisitor {
 public:
  explicit Writer(const Origins* origins) : origins_(origins) {}

  template <class T, class Kind>
  void field(std::string_view key, const T& value, const Kind& kind, std::string_view /*meaning*/) {
    const std::string path = path_of(key);
    const std::string text = kind.write(value);
    if (left_out(kind, value) || applies_not(path, text)) return;
    add_item(json_quote(key) + ": " + text, origin(path));
  }

  template <class Body>
  void section(std::string_view key, Body&& body) {
    add_item(json_quote(key) + ": {", "");
    indent_ += 2;
    has_previous_ = false;
    PathVisitor::section(key, body);
    indent_ -= 2;
    close_section();
  }

  template <class Body>
  void effective(const Condition& condition, Body&& body) {
    const bool outer = has_effect_;
    has_effect_ = outer && condition.holds({}) != Truth::No;
    body();
    has_effect_ = outer;
  }

  std::string text() const {
    std::string text = "{\n";
    for (const Line& line : lines_) {
      text += line.text;
      if (!line.comment.empty()) text += "  // " + line.comment;
      text += '\n';
    }
    return text + "}\n";
  }

 private:
  struct Line {
    std::string text;
    std::string comment;
  };

  // A default that nobody gave and nothing uses.
  bool applies_not(const std::string& path, const std::string& text) const {
    if (has_effect_ || (origins_ != nullptr && origins_->contains(path))) return false;
    const auto key = std::ranges::find(known_keys(), path, &KeyInfo::path);
    return key != known_keys().end() && key->fallback == text;
  }

  std::string origin(const std::string& path) const {
    if (origins_ == nullptr) return "";
    const auto found = origins_->find(path);
    return found == origins_->end() ? "default" : one_line(to_string(found->second));
  }

  // One more member of the object that is open; the comma belongs to the line before it.
  void add_item(const std::string& text, std::string comment) {
    if (has_previous_) lines_.back().text += ',';
    add_line(text, std::move(comment));
    has_previous_ = true;
  }

  void close_section() {
    if (has_previous_) {
      add_line("}", "");
    } else {
      lines_.back().text += '}';
    }
    has_previous_ = true;
  }

  void add_line(const std::string& text, std::string comment) {
    lines_.push_back({std::string(indent_, ' ') + text, std::move(comment)});
  }

  const Origins* origins_;
  std::vector<Line> lines_;
  std::size_t indent_ = 2;
  bool has_effect_ = true;     // What is visited.
  bool has_previous_ = false;  // The open object has a member already.
};

// Visitor: a member for each field, whether it has an effect or not.
class ValuesOnly : public PathVisitor {
 public:
  template <class T, class Kind>
  void field(std::string_view key, const T& value, const Kind& kind, std::string_view /*meaning*/) {
    add(key, kind.write(value));
  }

  template <class Body>
  void section(std::string_view key, Body&& body) {
    ValuesOnly inner;
    std::swap(members_, inner.members_);
    body();
    std::swap(members_, inner.members_);
    add(key, inner.text());
  }

  template <class Body>
  void when(bool /*applies*/, const Selector&, Body&& body) {
    body();
  }

  std::string text() const { return "{" + join(members_, ", ") + "}"; }

 private:
  void add(std::string_view key, const std::string& value) {
    members_.push_back(json_quote(key) + ": " + value);
  }

  std::vector<std::string> members_;
};

std::string write(const Config& config, const Origins* origins) {
  Writer writer(origins);
  visit_config(writer, config);
  return writer.text();
}

}  // namespace

std::string to_text(const Config& config) { return write(config, nullptr); }

std::string to_text(const ReadConfig& read) { return write(read.config, &read.origins); }

std::string to_text(const InitializeConfig& config) {
  ValuesOnly values;
  visit_initialize(values, config);
  return values.text();
}

}  // namespace penstock::config
