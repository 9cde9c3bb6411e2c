// Text on disk as training samples: bytes, split into training and validation, drawn by number.
//
// run_data.h makes one of a run's text.  What a sample holds depends on (seed, step, sample
// index) alone, never on the layout.  Knows no ranks.
// Shapes: a batch is tokens [samples, sequence] and targets [samples, sequence], int64 in [0, 256);
// targets are the tokens that follow.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "penstock/runtime/train/facts.h"

namespace penstock::run {

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

// Leaves out what no token of its own document predicts: the one behind a document's end.
void keep_within_documents(Batch& batch, std::int64_t document_end);

class TextData {
 public:
  // A file: its last 5 % are validation.  A directory, searched through: every file without a NUL
  // byte in its first 4 KiB, hidden ones and links left out; a stable hash of the relative path
  // puts 5 % of the files into validation.  If the directory holds Python's standard library, only
  // its own .py files count.
  // `advanced` is called after each file.
  // Throws: ConfigError when `path` is missing, cannot be read, or holds no text.
  static TextData load(const std::string& path, const std::function<void()>& advanced = {});

  // Throws: ConfigError when one part is too small to draw `samples` samples from.
  void require(std::int64_t samples, std::int64_t sequence_length) const;

  // Samples [first, first + count) of a training step.
  Batch training(std::int64_t seed, std::int64_t step, std::int64_t first, std::int64_t count,
                 std::int64_t sequence_length) const;
  // Samples of validation batch `batch`; the same in every run.
  Batch validation(std::int64_t batch, std::int64_t first, std::int64_t count,
                   std::int64_t sequence_length) const;

  const std::string& path() const { return path_; }
  std::int64_t files() const { return files_; }
  std::int64_t training_bytes() const { return std::ssize(training_); }
  std::int64_t validation_bytes() const { return std::ssize(validation_); }
  // Facts by which ranks see whether they have the same text.  Reads all of it.
  train::Facts facts() const;
  // The first `bytes` bytes of validation text that start a line, as a prompt.
  std::string prompt(std::int64_t bytes) const;

 private:
  static Batch draw(const std::string& text, std::uint64_t stream, std::int64_t first,
                    std::int64_t count, std::int64_t sequence_length);
  std::string path_;
  std::int64_t files_ = 0;
  std::string training_;
  std::string validation_;
};

// The folder of the Python standard library's sources, from `python3`; "": there is no python3.
std::string python_library();

}  // namespace penstock::run
