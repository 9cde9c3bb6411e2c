// XXH3-128 of bytes: what a file had when it was written, and has to have when it is read.
//
// Every chunk of a checkpoint has one, and so has its manifest.  Finds damage, not forgery.
// Source: xxHash 0.8, XXH3_128bits with seed 0; the text form is that of `xxhsum -H2`.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::checkpoint {

struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
};

Digest digest_of(std::string_view bytes);

// 32 hexadecimal digits.  Law: parse_digest(to_string(d)) is d.
std::string to_string(const Digest& digest);
std::optional<Digest> parse_digest(std::string_view text);

// The digests of the chunks of a file, whose bytes come one after the other, in any portions.
class ChunkDigests {
 public:
  explicit ChunkDigests(std::uint64_t chunk_bytes);
  ~ChunkDigests();
  ChunkDigests(const ChunkDigests&) = delete;
  ChunkDigests& operator=(const ChunkDigests&) = delete;

  void add(std::string_view bytes);
  // Digests of all chunks; the last chunk may be shorter.
  std::vector<Digest> finish();

 private:
  struct State;
  void end_chunk();

  std::uint64_t chunk_bytes_;
  std::uint64_t in_chunk_ = 0;  // Bytes of the current one so far.
  std::unique_ptr<State> state_;
  std::vector<Digest> digests_;
};

}  // namespace penstock::checkpoint
