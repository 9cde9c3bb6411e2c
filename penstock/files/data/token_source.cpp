#include "penstock/files/data/token_source.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <string_view>

#include "penstock/core/check.h"
#include "penstock/core/content_hash.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::data {
namespace {

namespace fs = std::filesystem;

bool is_token_file(const fs::path& path) { return path.extension() == ".bin"; }

// What lies beside token files and says something of them.
bool is_beside(const fs::path& path) {
  static constexpr std::array<std::string_view, 3> kExtensions = {".idx", ".json", ".mask"};
  return std::ranges::find(kExtensions, path.extension()) != kExtensions.end() ||
         path.filename().string().starts_with(".");
}

bool is_prefix(const fs::path& path) {
  std::error_code ignored;
  return !fs::exists(path, ignored) && fs::exists(path.string() + ".bin", ignored) &&
         fs::exists(path.string() + ".idx", ignored);
}

// Folders of nanoGPT and llm.c hold both what is trained on and what validates.
void refuse_two_parts(const std::string& folder, const std::vector<std::string>& files) {
  const auto holds = [](std::string_view word) {
    return [word](const std::string& file) {
      const std::string name = fs::path(file).filename().string();
      return name.starts_with(word) || name.find(str("_", word)) != std::string::npos;
    };
  };
  const auto validation = std::ranges::find_if(files, holds("val"));
  if (validation == files.end() || std::ranges::none_of(files, holds("train"))) return;
  throw ConfigError(str("token folder ", quoted_path(folder), ": holds tokens to train on, and ",
                        quoted_path(*validation), " to validate"),
                    {"move them apart, or name single files in data.sources and data.validation"});
}

// The token files of a path, sorted by name, so that every machine counts them in one order.
std::vector<std::string> files_of(const std::string& path) {
  if (is_prefix(path)) return {path + ".bin"};
  if (fs::path(path).extension() == ".idx") {
    return {fs::path(path).replace_extension(".bin").string()};
  }
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::string> files;
  auto entry = fs::directory_iterator(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path& each = entry->path();
    if (is_token_file(each) && !each.filename().string().starts_with(".")) {
      files.push_back(each.string());
    }
  }
  if (error) {
    throw ConfigError(
        str("token folder ", quoted_path(path), ": cannot be listed: ", error.message()));
  }
  if (files.empty()) {
    throw ConfigError(str("token folder ", quoted_path(path), ": holds no file *.bin"));
  }
  std::ranges::sort(files);
  refuse_two_parts(path, files);
  return files;
}

// Samples of another length would begin and end in the middle of documents.
void refuse_other_length(const TokenFile& file, std::int64_t sequence_length) {
  if (!file.note() || file.note()->sample_tokens.value_or(sequence_length) == sequence_length) {
    return;
  }
  const std::int64_t packed = *file.note()->sample_tokens;
  throw ConfigError(str("token file ", quoted_path(file.path()), ": its samples were packed with ",
                        packed, " tokens each, and model.sequence_length is ", sequence_length),
                    {str("set model.sequence_length to ", packed, ", or pack again with --length ",
                         sequence_length)});
}

}  // namespace

std::optional<TwoParts> two_parts(const std::string& folder) {
  const fs::path root(folder);
  std::error_code ignored;
  const auto is_there = [&](const fs::path& path) { return fs::is_regular_file(path, ignored); };
  if (!is_there(root / "train.bin") || !is_there(root / "val.bin")) return {};
  TwoParts parts{.training = (root / "train.bin").string(),
                 .validation = (root / "val.bin").string(),
                 .letters = {}};
  if (is_there(root / "meta.pkl")) parts.letters = (root / "meta.pkl").string();
  return parts;
}

bool looks_like_tokens(const std::string& path) {
  const fs::path as_path(path);
  std::error_code error;
  if (!fs::is_directory(as_path, error)) {
    return is_token_file(as_path) || as_path.extension() == ".idx" || is_prefix(as_path);
  }
  bool any = false;
  auto entry = fs::directory_iterator(as_path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (is_beside(entry->path())) continue;
    if (!is_token_file(entry->path())) return false;
    any = true;
  }
  return any && !error;
}

std::vector<std::string> tokens_among_texts(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  auto entry = fs::directory_iterator(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (is_token_file(entry->path())) names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

TokenSource::TokenSource(const SourceOptions& options, std::int64_t vocabulary,
                         std::int64_t sequence_length)
    : path_(options.path), sequence_length_(sequence_length) {
  std::int64_t samples = 0;
  for (const std::string& path : files_of(options.path)) {
    files_.emplace_back(path, options.format, vocabulary);
    refuse_other_length(files_.back(), sequence_length);
    samples += std::max<std::int64_t>(files_.back().tokens() - 1, 0) / sequence_length;
    end_.push_back(samples);
  }
  if (samples > 0) return;
  throw ConfigError(str("token source ", quoted_path(path_), ": has ", tokens(), " tokens in ",
                        files(), files() == 1 ? " file" : " files", "; a sample takes ",
                        sequence_length + 1, " of one file"),
                    {"a sample is model.sequence_length tokens, and the one that follows them"});
}

std::int64_t TokenSource::tokens() const {
  std::int64_t sum = 0;
  for (const TokenFile& file : files_) sum += file.tokens();
  return sum;
}

void TokenSource::read(std::int64_t sample, std::span<std::int64_t> inputs,
                       std::span<std::int64_t> targets) const {
  const auto [file, first] = place(sample);
  file.read(first, inputs);
  file.read_targets(first + 1, targets);
}

TokenSource::Place TokenSource::place(std::int64_t sample) const {
  PENSTOCK_CHECK(sample >= 0 && sample < samples(), sample, " of ", samples());
  const auto file = std::ranges::upper_bound(end_, sample) - end_.begin();
  const std::int64_t before = file == 0 ? 0 : end_[static_cast<std::size_t>(file - 1)];
  return {.file = files_[static_cast<std::size_t>(file)],
          .first = (sample - before) * sequence_length_};
}

bool TokenSource::any_counts(std::int64_t sample) const {
  const auto [file, first] = place(sample);
  return file.any_counts(first + 1, sequence_length_);
}

bool TokenSource::is_masked() const {
  return std::ranges::any_of(
      files_, [](const TokenFile& file) { return file.note() && file.note()->masked; });
}

bool TokenSource::is_packed() const {
  return std::ranges::any_of(
      files_, [](const TokenFile& file) { return file.note() && file.note()->sample_tokens; });
}

std::string TokenSource::fingerprint() const {
  std::vector<std::string> all;
  for (const TokenFile& file : files_) all.push_back(file.fingerprint());
  return content_hash(join(all, " "));
}

std::vector<Tokenizer> TokenSource::tokenizers() const {
  std::vector<Tokenizer> all;
  for (const TokenFile& file : files_) {
    if (!file.note() || file.note()->tokenizer_hash.empty()) continue;
    const std::string& hash = file.note()->tokenizer_hash;
    if (std::ranges::count(all, hash, &Tokenizer::hash) > 0) continue;
    all.push_back({.name = file.note()->tokenizer, .hash = hash});
  }
  return all;
}

std::set<std::optional<std::int64_t>> TokenSource::document_ends() const {
  std::set<std::optional<std::int64_t>> all;
  for (const TokenFile& file : files_) {
    all.insert(file.note() ? file.note()->end_of_text : std::nullopt);
  }
  return all;
}

std::set<std::int64_t> TokenSource::answer_ends() const {
  std::set<std::int64_t> all;
  for (const TokenFile& file : files_) {
    if (file.note()) all.insert(file.note()->answer_ends.begin(), file.note()->answer_ends.end());
  }
  return all;
}

}  // namespace penstock::data
