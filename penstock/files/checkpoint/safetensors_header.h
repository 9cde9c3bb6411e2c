// The header of a safetensors file: what it holds and where, without the bytes and without torch.
//
// safetensors.h writes and reads whole files with it.  Strict: a header that breaks the format is
// an error.  Includes no torch, so that its parser can be fuzzed alone.
// Source: the format's public description: {"name": {"dtype", "shape", "data_offsets"},
// "__metadata__": {...}}; the bytes follow without holes.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::checkpoint {

enum class ScalarType : std::uint8_t {
  F32,
  F64,
  F16,
  BF16,
  I64,
  I32,
  I16,
  U8,
  Boolean,
  I8,
  U16,
  U32,
  U64,
  F8_E4M3,
  F8_E5M2,
  C64
};

// The names of the format, by type.
inline constexpr std::array<std::string_view, 16> kScalarTypes = {
    "F32",  "F64", "F16", "BF16", "I64", "I32",     "I16",     "U8",
    "BOOL", "I8",  "U16", "U32",  "U64", "F8_E4M3", "F8_E5M2", "C64"};
std::uint64_t bytes_of(ScalarType type);

struct HeaderEntry {
  std::string name;
  ScalarType type = ScalarType::F32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin =
      0;  // Offsets from the end of the header; end - begin is the tensor's bytes.
  std::uint64_t end = 0;
  friend bool operator==(const HeaderEntry&, const HeaderEntry&) = default;
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;             // Sorted by their bytes, without holes.
  std::map<std::string, std::string> metadata;  // Facts for people: {"format": "pt"}.
  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

// The length (8 bytes, little-endian) and the header, filled up with spaces to a multiple of 8.
// Law: parse_header(to_bytes(h), name) is h with the bytes left for its entries.
// Throws: CheckpointError when two entries have one name.
std::string to_bytes(const SafetensorsHeader& header);

struct ParsedHeader {
  SafetensorsHeader header;
  std::size_t bytes = 0;  // Offset at which the tensors' bytes begin.
};
// The header at the start of `content`, which is the whole file called `path`.
// Throws: CheckpointError when it breaks the format; it names the tensor, the offset and what was
// expected.
ParsedHeader parse_header(std::string_view content, const std::string& path);
// The same where `content` is no more than a file's first header_end() bytes, and `bytes` is its
// size.
ParsedHeader parse_header(std::string_view content, std::uint64_t bytes, const std::string& path);

// The offset at which the header ends, in a file of `bytes` bytes that begins with `first`.
// REQUIRES: `first` is 8 bytes or more, or the whole file.
// Throws: CheckpointError where it cannot have one; it says what the file is where that is known.
std::uint64_t header_end(std::string_view first, std::uint64_t bytes, const std::string& path);

}  // namespace penstock::checkpoint
