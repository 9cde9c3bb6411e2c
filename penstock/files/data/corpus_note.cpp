#include "penstock/files/data/corpus_note.h"

#include <filesystem>
#include <limits>
#include <memory>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/json/unread_members.h"
#include "penstock/core/text.h"

namespace penstock::data {
namespace {

constexpr std::int64_t kVocabularyMax = std::int64_t{1} << 32;
constexpr const char* kVersionKey = "penstock_corpus";

// The members of a note, each of its kind.
class Members {
 public:
  Members(const json::Value& root, const std::string& name)
      : object_(std::get_if<json::Value::Object>(&root.data)), name_(name) {
    if (object_ == nullptr) refuse(str("expected an object, found ", json::found(root)));
  }

  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const {
    const json::Value& value = get(key);
    const auto* number = std::get_if<std::int64_t>(&value.data);
    if (number != nullptr && *number >= low && *number <= high) return *number;
    refuse(str(key, " = ", json::found(value), ": must be an integer in [", low, ", ", high, "]"));
  }

  std::string text(const char* key) const {
    const json::Value& value = get(key);
    if (const auto* text = std::get_if<std::string>(&value.data)) return *text;
    refuse(str(key, ": expected a string, found ", json::found(value)));
  }

  bool flag(const char* key) const {
    const json::Value& value = get(key);
    if (const auto* flag = std::get_if<bool>(&value.data)) return *flag;
    refuse(str(key, ": expected true or false, found ", json::found(value)));
  }

  std::vector<std::int64_t> integers(const char* key, std::int64_t low, std::int64_t high) const {
    const json::Value& value = get(key);
    const auto* const list = std::get_if<json::Value::Array>(&value.data);
    std::vector<std::int64_t> numbers;
    for (const json::Value& each : list != nullptr ? *list : json::Value::Array()) {
      const auto* const number = std::get_if<std::int64_t>(&each.data);
      if (number != nullptr && *number >= low && *number <= high) numbers.push_back(*number);
    }
    if (list != nullptr && list->size() == numbers.size()) return numbers;
    refuse(str(key, ": must be a list of integers in [", low, ", ", high, "]"));
  }

  bool is_null(const char* key) const { return get(key).is_null(); }
  bool has(const char* key) const { return json::find(*object_, key) != nullptr; }

  // What a program of another version wrote may change how the tokens are read.
  void refuse_unread() const {
    for (const auto& [member, why] : json::unread_members(*object_, read_, {})) {
      refuse(str(member->key, " = ", json::found(member->value), ": ", why));
    }
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw ConfigError(str("corpus note ", quoted_path(name_), ": ", why),
                      {"python -m penstock.tokenize writes it beside a corpus file; "
                       "without it data.format says how tokens lie in the file"});
  }

 private:
  const json::Value& get(const char* key) const {
    read_.emplace(key);
    const json::Member* member = json::find(*object_, key);
    if (member == nullptr) refuse(str(key, " is missing"));
    return member->value;
  }

  const json::Value::Object* object_;
  mutable json::ReadKeys read_;
  const std::string& name_;
};

}  // namespace

std::string note_path(const std::string& path) { return path + ".json"; }
std::string mask_path(const std::string& path) { return path + ".mask"; }

CorpusNote parse_note(std::string_view text, const std::string& name) {
  const json::Value root = json::parse(
      std::make_shared<json::Source>(json::Source{.name = name, .text = std::string(text)}));
  const Members members(root, name);
  members.integer(kVersionKey, kCorpusNoteVersion, kCorpusNoteVersion);
  CorpusNote note{
      .token_bytes = members.integer("token_bytes", 2, 4),
      .tokens = members.integer("tokens", 1, std::numeric_limits<std::int64_t>::max() / 4),
      .vocabulary = members.integer("vocabulary", 1, kVocabularyMax),
      .tokenizer = members.text("tokenizer"),
      .tokenizer_hash = members.text("tokenizer_hash"),
      .masked = members.flag("masked")};
  if (note.token_bytes == 3) members.refuse("token_bytes = 3: must be 2 or 4");
  if (!members.is_null("end_of_text")) {
    note.end_of_text = members.integer("end_of_text", 0, note.vocabulary - 1);
  }
  if (members.has("sample_tokens")) {
    note.sample_tokens = members.integer("sample_tokens", 1, note.tokens);
  }
  if (members.has("answer_ends")) {
    note.answer_ends = members.integers("answer_ends", 0, note.vocabulary - 1);
  }
  members.refuse_unread();
  return note;
}

std::optional<CorpusNote> read_note(const std::string& path) {
  const std::string beside = note_path(path);
  std::error_code ignored;
  if (!std::filesystem::exists(beside, ignored)) return {};
  return parse_note(read_foreign_file("corpus note", beside, json::kBytesMax), beside);
}

}  // namespace penstock::data
