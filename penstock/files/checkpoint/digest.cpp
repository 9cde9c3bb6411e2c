#include "penstock/files/checkpoint/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace penstock::checkpoint {
namespace {

constexpr std::size_t kDigitsOfHalf = 16;

Digest from(const XXH128_hash_t& hash) { return {.high = hash.high64, .low = hash.low64}; }

std::string digits_of(std::uint64_t half) {
  std::array<char, kDigitsOfHalf> digits = {};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), half, 16).ptr;
  const std::string text(digits.data(), end);
  return std::string(kDigitsOfHalf - text.size(), '0') + text;
}

std::optional<std::uint64_t> parse_half(std::string_view text) {
  const bool has_others = std::ranges::any_of(
      text, [](char c) { return !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')); });
  if (has_others) return std::nullopt;
  std::uint64_t half = 0;
  std::from_chars(text.data(), text.data() + text.size(), half, 16);
  return half;
}

}  // namespace

Digest digest_of(std::string_view bytes) { return from(XXH3_128bits(bytes.data(), bytes.size())); }

std::string to_string(const Digest& digest) {
  return digits_of(digest.high) + digits_of(digest.low);
}

std::optional<Digest> parse_digest(std::string_view text) {
  if (text.size() != 2 * kDigitsOfHalf) return std::nullopt;
  const auto high = parse_half(text.substr(0, kDigitsOfHalf));
  const auto low = parse_half(text.substr(kDigitsOfHalf));
  if (!high || !low) return std::nullopt;
  return Digest{.high = *high, .low = *low};
}

struct ChunkDigests::State {
  XXH3_state_t hash;
};

ChunkDigests::ChunkDigests(std::uint64_t chunk_bytes)
    : chunk_bytes_(chunk_bytes), state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->hash);
}

ChunkDigests::~ChunkDigests() = default;

void ChunkDigests::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min<std::uint64_t>(bytes.size(), chunk_bytes_ - in_chunk_);
    XXH3_128bits_update(&state_->hash, bytes.data(), count);
    in_chunk_ += count;
    bytes.remove_prefix(count);
    if (in_chunk_ == chunk_bytes_) end_chunk();
  }
}

std::vector<Digest> ChunkDigests::finish() {
  if (in_chunk_ > 0) end_chunk();
  return std::move(digests_);
}

void ChunkDigests::end_chunk() {
  digests_.push_back(from(XXH3_128bits_digest(&state_->hash)));
  XXH3_128bits_reset(&state_->hash);
  in_chunk_ = 0;
}

}  // namespace penstock::checkpoint
