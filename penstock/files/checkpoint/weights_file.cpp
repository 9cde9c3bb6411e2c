#include "penstock/files/checkpoint/weights_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/read_at.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

constexpr std::uint64_t kFirstBytes = 4096;  // Enough for all of the header in most small files.

}  // namespace

WeightsFile::WeightsFile(std::string path)
    : path_(std::move(path)), opened_(open_foreign_file(path_)) {
  if (!opened_) throw CheckpointError(str(quoted_path(path_), " ", opened_.problem));
}

void WeightsFile::read(std::uint64_t first, std::span<std::byte> to) const {
  const ReadAt got = read_at(opened_.file.get(), static_cast<std::int64_t>(first), to);
  if (got.bytes == to.size()) return;
  if (got.error != 0) {
    throw CheckpointError(str(quoted_path(path_), " cannot be read: ", std::strerror(got.error)));
  }
  throw CheckpointError(str(quoted_path(path_), " ends at byte ", first + got.bytes, ", with ",
                            to.size() - got.bytes, " bytes to come: it has become shorter"));
}

std::string WeightsFile::begin(std::uint64_t count) const {
  std::string bytes(std::min(count, opened_.bytes), '\0');
  read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

ParsedHeader WeightsFile::read_header() const {
  const std::string first = begin(kFirstBytes);
  return parse_header(begin(header_end(first, opened_.bytes, path_)), opened_.bytes, path_);
}

}  // namespace penstock::checkpoint
