#include "penstock/core/progress_lines.h"

#include <algorithm>
#include <utility>

#include "penstock/core/byte_size.h"
#include "penstock/core/text.h"

namespace penstock {

ProgressLines::ProgressLines(Output& output, std::string doing, std::uint64_t bytes,
                             std::chrono::nanoseconds every)
    : output_(output), doing_(std::move(doing)), bytes_(bytes), pace_(every) {}

void ProgressLines::add(std::uint64_t bytes) {
  done_ += std::min(bytes, bytes_ - done_);
  if (!pace_.is_due()) return;
  output_.write(str("penstock: ", doing_, ": ", mebibytes(done_), " of ", mebibytes(bytes_), "\n"));
}

}  // namespace penstock
