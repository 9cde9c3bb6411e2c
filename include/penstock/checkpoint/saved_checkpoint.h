// A checkpoint on disk, to be read: any elements of any of its tensors, each verified.
//
// A rank that resumes makes one, and so do the commands that look at checkpoints.  What is read is
// compared with the digests of its chunks first, so damage is an error and never a value.
// Thread safety: one thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/file_descriptor.h"
#include "penstock/files/checkpoint/manifest.h"

namespace penstock::checkpoint {

class SavedCheckpoint {
 public:
  // Reads the manifest of `folder`, and opens the shards.
  // Throws: CheckpointError for a manifest that is missing, damaged or none, and for a shard that
  // is missing or of another size.
  explicit SavedCheckpoint(std::string folder);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // A hash of the manifest's text, which has the digests of all chunks.  So two checkpoints with
  // the same hash are the same.
  const std::string& manifest_hash() const { return manifest_hash_; }

  // Reads the elements of a region of `tensor` to `bytes`, which are as many.
  // REQUIRES: the tensor is the manifest's, and has the region.
  // Throws: CheckpointError that names the file, the bytes, and the tensors there, for a chunk that
  // is not as it was written.  `advanced` is called after each chunk.
  void read(const Tensor& tensor, const Region& region, std::span<std::byte> bytes,
            const std::function<void()>& advanced = {});
  // The same of elements [first, first + count) of the whole tensor.
  void read(const Tensor& tensor, std::int64_t first, std::int64_t count,
            std::span<std::byte> bytes, const std::function<void()>& advanced = {}) {
    read(tensor, {.first = first, .count = count}, bytes, advanced);
  }

  // Gives those elements to `take`, in portions of at most kPortionBytes, one after the other.
  // Throws: likewise; `take` has had the portions before the damage then.
  static constexpr std::uint64_t kPortionBytes = std::uint64_t{4} << 20;
  void read_portions(const Tensor& tensor, std::int64_t first, std::int64_t count,
                     const std::function<void(std::string_view)>& take);

  // Reads what read() would, and keeps nothing.  Throws: likewise.
  void verify(const Tensor& tensor, const Region& region,
              const std::function<void()>& advanced = {});
  void verify(const Tensor& tensor, std::int64_t first, std::int64_t count,
              const std::function<void()>& advanced = {}) {
    verify(tensor, {.first = first, .count = count}, advanced);
  }
  // Reads all of every shard.  Throws: as read(), for the first chunk that is not as it was.
  void verify(const std::function<void()>& advanced = {});

 private:
  struct OpenShard {
    FileDescriptor file;
    std::size_t chunk = 0;  // The one in `bytes`, which are verified.
    std::string bytes;
    bool header_is_verified = false;
    std::uint64_t ahead = 0;  // Bytes up to there are on their way from the disk.
  };
  std::string path_of(std::size_t shard) const;
  // Calls visit(shard, offset in its file, bytes before it, bytes) of each run of the region's
  // elements that lies in a shard without a gap, shard by shard.
  template <class Visit>
  void visit_spans(const Tensor& tensor, const Region& region, const Visit& visit) const;
  void verify_header(std::size_t shard);
  void read_bytes(std::size_t shard, std::uint64_t offset, std::span<std::byte> to,
                  const std::function<void()>& advanced);
  std::uint64_t bytes_of_chunk(std::size_t shard, std::size_t chunk) const;
  static void read_ahead(OpenShard& shard, std::uint64_t begin);
  void read_chunk(std::size_t shard, std::size_t chunk, std::span<std::byte> to);
  std::string_view keep_chunk(std::size_t shard, std::size_t chunk);
  std::string tensors_in(std::size_t shard, std::size_t chunk) const;

  std::string folder_;
  Manifest manifest_;
  std::string manifest_hash_;
  std::vector<OpenShard> shards_;
};

}  // namespace penstock::checkpoint
