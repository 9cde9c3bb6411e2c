#include "penstock/checkpoint/saved_checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/content_hash.h"
#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/read_at.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

FileDescriptor open_shard(const std::string& path, std::uint64_t bytes) {
  ForeignFile opened = open_foreign_file(path);
  if (!opened) throw CheckpointError(str("shard ", quoted_path(path), ": ", opened.problem));
  if (opened.bytes != bytes) {
    throw CheckpointError(
        str(quoted_path(path), " has ", opened.bytes, " bytes; it was written with ", bytes));
  }
  return std::move(opened.file);
}

}  // namespace

SavedCheckpoint::SavedCheckpoint(std::string folder) : folder_(std::move(folder)) {
  const std::string path = str(folder_, "/", kManifestName);
  const std::string text = read_foreign_file<CheckpointError>("manifest", path, kManifestBytesMax);
  manifest_ = parse_manifest(text, path);
  manifest_hash_ = content_hash(text);
  for (std::size_t s = 0; s < manifest_.shards.size(); ++s) {
    shards_.push_back({.file = open_shard(path_of(s), manifest_.shards[s].bytes)});
  }
}

std::string SavedCheckpoint::path_of(std::size_t shard) const {
  return str(folder_, "/", shard_file(shard, manifest_.shards.size()));
}

template <class Visit>
void SavedCheckpoint::visit_spans(const Tensor& tensor, const Region& region,
                                  const Visit& visit) const {
  const std::int64_t elements = elements_of(sizes_of(region.box, tensor.shape));
  PENSTOCK_CHECK(region.first >= 0 && region.first + region.count <= elements, tensor.name,
                 to_string(region.box), " has ", elements, " elements, not [", region.first, ", ",
                 region.first + region.count, ")");
  const std::uint64_t size = bytes_of(tensor.type);
  for (const Piece& piece : tensor.pieces) {
    for_each_common_run(
        tensor.shape, region, piece.region(),
        [&](std::int64_t here, std::int64_t in_piece, std::int64_t count) {
          visit(piece.shard, piece.offset + static_cast<std::uint64_t>(in_piece) * size,
                static_cast<std::uint64_t>(here) * size, static_cast<std::uint64_t>(count) * size);
        });
  }
}

void SavedCheckpoint::read(const Tensor& tensor, const Region& region, std::span<std::byte> bytes,
                           const std::function<void()>& advanced) {
  PENSTOCK_CHECK(bytes.size() == static_cast<std::uint64_t>(region.count) * bytes_of(tensor.type),
                 region.count, " elements of ", tensor.name, " to ", bytes.size(), " bytes");
  visit_spans(
      tensor, region,
      [&](std::size_t shard, std::uint64_t offset, std::uint64_t before, std::uint64_t length) {
        read_bytes(shard, offset, bytes.subspan(before, length), advanced);
      });
}

void SavedCheckpoint::read_portions(const Tensor& tensor, std::int64_t first, std::int64_t count,
                                    const std::function<void(std::string_view)>& take) {
  const auto size = static_cast<std::int64_t>(bytes_of(tensor.type));
  const std::int64_t most = static_cast<std::int64_t>(kPortionBytes) / size;
  std::string portion(static_cast<std::size_t>(std::min(count, most) * size), '\0');
  for (std::int64_t done = 0; done < count; done += most) {
    const std::int64_t now = std::min(most, count - done);
    portion.resize(static_cast<std::size_t>(now * size));
    read(tensor, first + done, now, std::as_writable_bytes(std::span(portion)));
    take(portion);
  }
}

void SavedCheckpoint::verify(const Tensor& tensor, const Region& region,
                             const std::function<void()>& advanced) {
  visit_spans(tensor, region,
              [&](std::size_t shard, std::uint64_t offset, std::uint64_t, std::uint64_t length) {
                verify_header(shard);
                const std::size_t last = (offset + length - 1) / kChunkBytes;
                for (std::size_t chunk = offset / kChunkBytes; chunk <= last; ++chunk) {
                  keep_chunk(shard, chunk);
                  if (advanced) advanced();
                }
              });
}

void SavedCheckpoint::verify(const std::function<void()>& advanced) {
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    for (std::size_t c = 0; c < manifest_.shards[s].chunks.size(); ++c) {
      keep_chunk(s, c);
      if (advanced) advanced();
    }
  }
}

void SavedCheckpoint::verify_header(std::size_t shard) {
  if (shards_[shard].header_is_verified) return;
  const std::uint64_t header = manifest_.shards[shard].header_bytes;
  for (std::size_t c = 0; c * kChunkBytes < header; ++c) keep_chunk(shard, c);
  shards_[shard].header_is_verified = true;
}

// Whole chunks are read to where they are wanted, others by way of the shard's own.
void SavedCheckpoint::read_bytes(std::size_t shard, std::uint64_t offset, std::span<std::byte> to,
                                 const std::function<void()>& advanced) {
  verify_header(shard);
  while (!to.empty()) {
    const std::size_t chunk = offset / kChunkBytes;
    const std::uint64_t in_chunk = offset % kChunkBytes;
    const std::uint64_t bytes = bytes_of_chunk(shard, chunk);
    const std::size_t count = std::min<std::uint64_t>(to.size(), bytes - in_chunk);
    if (count == bytes) {
      read_chunk(shard, chunk, to.first(count));
    } else {
      std::memcpy(to.data(), keep_chunk(shard, chunk).data() + in_chunk, count);
    }
    to = to.subspan(count);
    offset += count;
    if (advanced) advanced();
  }
}

std::uint64_t SavedCheckpoint::bytes_of_chunk(std::size_t shard, std::size_t chunk) const {
  return std::min(kChunkBytes, manifest_.shards[shard].bytes - chunk * kChunkBytes);
}

std::string_view SavedCheckpoint::keep_chunk(std::size_t shard, std::size_t chunk) {
  OpenShard& open = shards_[shard];
  if (open.bytes.empty() || open.chunk != chunk) {
    std::string bytes = std::exchange(open.bytes, {});
    bytes.resize(bytes_of_chunk(shard, chunk));
    read_chunk(shard, chunk, std::as_writable_bytes(std::span(bytes)));
    open.bytes = std::move(bytes);
    open.chunk = chunk;
  }
  return open.bytes;
}

// The disk has something to do while this chunk is compared.
void SavedCheckpoint::read_ahead(OpenShard& shard, std::uint64_t begin) {
  constexpr std::uint64_t kAhead = std::uint64_t{16} << 20;
  const bool is_elsewhere = begin + 2 * kAhead < shard.ahead || begin > shard.ahead;
  if (!is_elsewhere && begin + kAhead < shard.ahead) return;
  const std::uint64_t from = is_elsewhere ? begin : shard.ahead;
  shard.ahead = begin + 2 * kAhead;
  ::posix_fadvise(shard.file.get(), static_cast<off_t>(from),
                  static_cast<off_t>(shard.ahead - from), POSIX_FADV_WILLNEED);
}

void SavedCheckpoint::read_chunk(std::size_t shard, std::size_t chunk, std::span<std::byte> to) {
  const std::uint64_t begin = chunk * kChunkBytes;
  read_ahead(shards_[shard], begin);
  const ReadAt read = read_at(shards_[shard].file.get(), static_cast<std::int64_t>(begin), to);
  if (read.bytes < to.size()) {
    throw CheckpointError(str("cannot read ", quoted_path(path_of(shard)), " at byte ",
                              begin + read.bytes, ": ",
                              read.error == 0 ? "it ends there" : std::strerror(read.error)));
  }
  const Digest is = digest_of({reinterpret_cast<const char*>(to.data()), to.size()});
  const Digest& was = manifest_.shards[shard].chunks[chunk];
  if (is == was) return;
  throw CheckpointError(
      str(quoted_path(path_of(shard)), " is damaged: bytes ", begin, " to ", begin + to.size(),
          " have the digest ", to_string(is), ", they were written with ", to_string(was)),
      {str("there are ", tensors_in(shard, chunk))});
}

std::string SavedCheckpoint::tensors_in(std::size_t shard, std::size_t chunk) const {
  constexpr std::size_t kNamed = 3;
  const std::uint64_t begin = chunk * kChunkBytes, end = begin + kChunkBytes;
  std::vector<std::string> named;
  if (begin < manifest_.shards[shard].header_bytes) named.emplace_back("its header");
  std::size_t others = 0;
  for (const Tensor& tensor : manifest_.tensors) {
    for (const Piece& piece : tensor.pieces) {
      const std::uint64_t bytes = static_cast<std::uint64_t>(piece.count) * bytes_of(tensor.type);
      const bool is_there =
          piece.shard == shard && piece.offset < end && piece.offset + bytes > begin;
      if (!is_there) continue;
      if (named.size() < kNamed) {
        named.push_back(str(tensor.state, " of ", in_quotes(tensor.name)));
      } else {
        ++others;
      }
    }
  }
  return join(named, ", ") + (others > 0 ? str(" and ", others, " more") : "");
}

}  // namespace penstock::checkpoint
