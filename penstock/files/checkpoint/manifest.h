// What a checkpoint has, and where: a value, and its text, the file manifest.json.
//
// A checkpoint is tensors by name, of the whole run: parameters, buffers, and what the optimizer
// keeps of parameters.  Each is cut into pieces, and each piece is a tensor in one of the shards,
// which are safetensors files.  Nothing in it depends on a layout: a rank of any other one reads
// the elements that it needs.  The format, byte by byte: docs/checkpoint_format.md.
// Knows no files but by their names' rule, and no ranks.
// Invariants, which parse_manifest() and merge() see to: names are different; the boxes of a
// tensor's pieces make it up, and every element of a box is in one piece; pieces lie in their
// shards, one behind the other, without gaps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/box.h"
#include "penstock/files/checkpoint/digest.h"
#include "penstock/files/checkpoint/safetensors_header.h"

namespace penstock::checkpoint {

// Version of what is written.  Version 1, which has no boxes, is read, too.
inline constexpr std::int64_t kFormatVersion = 2;
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
// Enough for shards of 10 TB.
inline constexpr std::size_t kManifestBytesMax = std::size_t{1} << 29;
// What a tensor is to its parameter, besides states of an optimizer, which have their own words:
// "exp_avg", say.
inline constexpr std::string_view kWeight = "weight";
// The state of a tensor that belongs to one of the values.  It is called after that value's key:
// "rng of rank 3#0".
inline constexpr std::string_view kValue = "value";

// Elements [first, first + count) of a box of a tensor, or of all of it.
struct Piece {
  Box box = {};
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::size_t shard = 0;
  std::uint64_t offset = 0;  // Bytes from the beginning of the shard's file.
  friend bool operator==(const Piece&, const Piece&) = default;

  Region region() const { return {.box = box, .first = first, .count = count}; }
};

struct Tensor {
  std::string name;   // A parameter's or buffer's: "transformer.h.0.ln_1.weight".
  std::string state;  // kWeight, or the optimizer's word for it.
  ScalarType type = ScalarType::F32;
  Sizes shape;
  std::vector<Piece> pieces;  // Sorted by box, then first.
  friend bool operator==(const Tensor&, const Tensor&) = default;

  std::int64_t elements() const;
};

// "F32[2, 5]".
std::string type_and_shape(const Tensor& tensor);

struct Shard {
  std::uint64_t bytes = 0;         // Size of its file.
  std::uint64_t header_bytes = 0;  // Bytes before its first tensor.
  std::vector<Digest> chunks;      // Digests of kChunkBytes each; the last may be of less.
  friend bool operator==(const Shard&, const Shard&) = default;
};

using Texts = std::map<std::string, std::string>;

struct Manifest {
  std::int64_t step = 0;  // Optimizer steps taken.
  Texts facts;            // How the run was set up: for people, and for comparison with another.
  Texts values;           // What goes on where it stopped, besides tensors.
  std::vector<Shard> shards;
  std::vector<Tensor> tensors;  // Sorted by name, then state.
  friend bool operator==(const Manifest&, const Manifest&) = default;

  // Null where there is none.
  const Tensor* find(std::string_view name, std::string_view state) const;
  std::uint64_t bytes() const;  // Bytes of all shards.
};

// The file of shard `index` of `count`: "shard-00000-of-00004.safetensors".  A manifest has no
// names of files, so that none of it becomes a path.
std::string shard_file(std::size_t index, std::size_t count);
// Whether a file has a name that this format gives.
bool is_of_checkpoint(std::string_view file);

// The manifest of a whole checkpoint, from those of its shards: each has one shard, and the pieces
// in it.  Step and facts are the first one's; values are those of all.
// Throws: CheckpointError for elements that no shard has, or two have, and for a tensor or a value
// that two shards know differently.
Manifest merge(const std::vector<Manifest>& of_shards);

// JSON, whose last member is the digest of all that stands before it.
// Law: parse_manifest(to_text(m), name) is m, of one that merge() made.
std::string to_text(const Manifest& manifest);
// `path` is for messages.  Throws: CheckpointError, saying what is wrong where: first of all for a
// text that is not as it was written.
Manifest parse_manifest(const std::string& text, const std::string& path);
// The same of a shard's, before merge(): other shards have the rest of its tensors.
Manifest parse_fragment(const std::string& text, const std::string& path);

}  // namespace penstock::checkpoint
