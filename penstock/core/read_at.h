// Bytes of an open file from an offset on, however many calls that takes.
//
// Who reads corpora, weights and checkpoints calls it, and says what is wrong in words of its own.
// Knows no paths.  Units: bytes.  Thread safety: reads of one descriptor may overlap.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

struct ReadAt {
  std::size_t bytes = 0;  // Read bytes: all, unless the file ends before or `error` is not 0.
  int error = 0;          // An errno.
};

ReadAt read_at(int descriptor, std::int64_t offset, std::span<std::byte> to);

}  // namespace penstock
