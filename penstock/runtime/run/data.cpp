#include "penstock/runtime/run/data.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <span>
#include <vector>

#include "penstock/core/content_hash.h"
#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/ignored_target.h"
#include "penstock/core/read_at.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"

namespace penstock::run {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFileBytesMax = std::size_t{8} << 30;  // All of it is in memory.
constexpr std::size_t kProbeBytes = 4096;
constexpr std::uint64_t kValidationShare = 20;  // One file in so many.
constexpr std::uint64_t kValidationStream = 0x76616C6964617465u;

std::string read_text(const std::string& path) {
  return read_file("data path", path, kFileBytesMax);
}

bool is_text(const std::string& beginning) { return beginning.find('\0') == std::string::npos; }

// The text of a file in a folder; empty: it is no text.  No more is read of such a file than its
// beginning.
std::string read_if_text(const std::string& path) {
  const ForeignFile opened = open_foreign_file(path);
  if (!opened) throw ConfigError(str("data path ", quoted_path(path), ": ", opened.problem));
  std::string probe(std::min<std::uint64_t>(opened.bytes, kProbeBytes), '\0');
  probe.resize(read_at(opened.file.get(), 0, std::as_writable_bytes(std::span(probe))).bytes);
  return is_text(probe) ? read_foreign_file("data path", path, kFileBytesMax) : std::string();
}

bool is_python_library(const fs::path& root) {
  return fs::exists(root / "os.py") && fs::exists(root / "abc.py");
}

// Third-party packages and tests are not the library.
bool is_foreign(const std::string& directory) {
  static constexpr std::array<std::string_view, 5> kForeign = {"site-packages", "dist-packages",
                                                               "test", "tests", "__pycache__"};
  return std::find(kForeign.begin(), kForeign.end(), directory) != kForeign.end();
}

// Relative paths of the candidates, sorted, so that every machine reads them in one order.
std::vector<std::string> list_files(const fs::path& root) {
  const bool library = is_python_library(root);
  std::vector<std::string> files;
  const auto options = fs::directory_options::skip_permission_denied;
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(root, options, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool hidden = name.starts_with(".");
    if (entry->is_directory() && !entry->is_symlink()) {
      if (hidden || (library && is_foreign(name))) entry.disable_recursion_pending();
    } else if (!hidden && !entry->is_symlink() && entry->is_regular_file() &&
               (!library || entry->path().extension() == ".py")) {
      files.push_back(fs::relative(entry->path(), root).generic_string());
    }
  }
  if (error) {
    throw ConfigError(
        str("data path \"", root.string(), "\": cannot be listed: ", error.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

void keep_within_documents(Batch& batch, std::int64_t document_end) {
  batch.target.masked_fill_(batch.input == document_end, kIgnoredTarget);
}

TextData TextData::load(const std::string& path, const std::function<void()>& advanced) {
  TextData data;
  data.path_ = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found || error) {
    throw ConfigError(str("data path \"", path, "\" does not exist (looked at ",
                          fs::absolute(path).string(), ")"));
  }
  if (status.type() != fs::file_type::directory) {
    const std::string text = read_text(path);
    const std::size_t cut = text.size() - text.size() / 20;
    data.training_ = text.substr(0, cut);
    data.validation_ = text.substr(cut);
    data.files_ = 1;
  } else {
    for (const std::string& relative : list_files(path)) {
      const std::string text = read_if_text((fs::path(path) / relative).string());
      if (advanced) advanced();
      if (text.empty()) continue;
      const bool validation = mix(stable_hash(relative)) % kValidationShare == 0;
      (validation ? data.validation_ : data.training_) += text;
      ++data.files_;
    }
  }
  if (data.training_.empty()) {
    throw ConfigError(str("data path \"", path, "\" holds no text"),
                      {"give a text file, or a directory with text files in it"});
  }
  return data;
}

void TextData::require(std::int64_t samples, std::int64_t sequence_length) const {
  const auto check = [&](const char* part, std::int64_t has, std::int64_t needs) {
    if (has >= needs) return;
    throw ConfigError(
        str("data path \"", path_, "\" is too small: ", has, " bytes of ", part, " text in ",
            files_, files_ == 1 ? " file" : " files", ", needs ", needs),
        {str("a batch is train_batch_size ", samples, " x model.sequence_length ", sequence_length,
             " bytes; validation gets 5 % of the text, and needs "
             "one sample")});
  };
  check("training", training_bytes(), samples * sequence_length + 1);
  check("validation", validation_bytes(), sequence_length + 1);
}

Batch TextData::draw(const std::string& text, std::uint64_t stream, std::int64_t first,
                     std::int64_t count, std::int64_t sequence_length) {
  Batch batch{at::empty({count, sequence_length}, at::kLong),
              at::empty({count, sequence_length}, at::kLong)};
  auto* input = batch.input.data_ptr<std::int64_t>();
  auto* target = batch.target.data_ptr<std::int64_t>();
  const auto starts = static_cast<std::uint64_t>(std::ssize(text) - sequence_length);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t draw = mix(stream ^ mix(static_cast<std::uint64_t>(first + i)));
    const char* bytes = text.data() + draw % starts;
    for (std::int64_t t = 0; t < sequence_length; ++t) {
      *input++ = static_cast<unsigned char>(bytes[t]);
      *target++ = static_cast<unsigned char>(bytes[t + 1]);
    }
  }
  return batch;
}

Batch TextData::training(std::int64_t seed, std::int64_t step, std::int64_t first,
                         std::int64_t count, std::int64_t sequence_length) const {
  const std::uint64_t stream =
      mix(mix(static_cast<std::uint64_t>(seed)) ^ static_cast<std::uint64_t>(step));
  return draw(training_, stream, first, count, sequence_length);
}

Batch TextData::validation(std::int64_t batch, std::int64_t first, std::int64_t count,
                           std::int64_t sequence_length) const {
  const std::uint64_t stream = mix(kValidationStream ^ static_cast<std::uint64_t>(batch));
  return draw(validation_, stream, first, count, sequence_length);
}

train::Facts TextData::facts() const {
  using agreement::Fact;
  return {{Fact::TextFiles, str(files_)},
          {Fact::TextBytesToTrainOn, str(training_bytes())},
          {Fact::TextBytesToValidate, str(validation_bytes())},
          {Fact::TextToTrainOn, content_hash(training_)},
          {Fact::TextToValidate, content_hash(validation_)}};
}

std::string TextData::prompt(std::int64_t bytes) const {
  const std::size_t newline = validation_.find('\n');
  const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
  std::string text = validation_.substr(begin, static_cast<std::size_t>(bytes));
  text.insert(0, static_cast<std::size_t>(bytes) - text.size(), '\n');
  return text;
}

std::string python_library() {
  constexpr const char* kCommand =
      "python3 -I -S -c 'import sysconfig; print(sysconfig.get_paths()[\"stdlib\"])' 2>/dev/null";
  std::string output;
  std::FILE* pipe = ::popen(kCommand, "r");
  if (pipe == nullptr) return {};
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) output += buffer.data();
  ::pclose(pipe);
  return std::string(trim(output));
}

}  // namespace penstock::run
