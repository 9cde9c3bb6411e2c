// Strong integers, so that a stage is never passed where a rank is meant.
//
// Every planning layer names its things with these.  They print as plain numbers.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <ostream>

namespace penstock {

template <class Tag>
struct Id {
  std::int32_t value = 0;

  constexpr Id() = default;
  constexpr explicit Id(std::int32_t v) : value(v) {}
  constexpr explicit Id(std::size_t v) : value(static_cast<std::int32_t>(v)) {}

  // Index into arrays that hold one entry an id.
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }

  friend constexpr auto operator<=>(const Id&, const Id&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Id& id) { return out << id.value; }
};

// An id or none, in the bytes of an id alone: for values of which there are tens of millions, where
// std::optional would take twice the memory, and time to copy.  Used as std::optional is.
// REQUIRES: no id has the smallest number.
template <class Tag>
class OptionalId {
 public:
  constexpr OptionalId() = default;
  constexpr OptionalId(std::nullopt_t) {}        // NOLINT: as std::optional.
  constexpr OptionalId(Id<Tag> id) : id_(id) {}  // NOLINT: as std::optional.
  constexpr OptionalId(std::optional<Id<Tag>> id) : id_(id.value_or(kNone)) {}  // NOLINT
  constexpr operator std::optional<Id<Tag>>() const {                           // NOLINT
    return has_value() ? std::optional(id_) : std::nullopt;
  }

  constexpr bool has_value() const { return id_ != kNone; }
  constexpr explicit operator bool() const { return has_value(); }
  constexpr const Id<Tag>& operator*() const { return id_; }
  constexpr const Id<Tag>* operator->() const { return &id_; }
  constexpr Id<Tag>& operator*() { return id_; }
  constexpr Id<Tag>* operator->() { return &id_; }
  // Throws: std::bad_optional_access.
  constexpr const Id<Tag>& value() const {
    if (!has_value()) throw std::bad_optional_access();
    return id_;
  }
  constexpr Id<Tag> value_or(Id<Tag> other) const { return has_value() ? id_ : other; }

  // None is less than any id.
  friend constexpr auto operator<=>(const OptionalId&, const OptionalId&) = default;

 private:
  static constexpr Id<Tag> kNone{std::numeric_limits<std::int32_t>::min()};
  Id<Tag> id_ = kNone;
};

using Rank = Id<struct RankTag>;              // Global process number, in [0, world size).
using StageId = Id<struct StageTag>;          // Global model piece, in [0, stages).
using Microbatch = Id<struct MicrobatchTag>;  // Slice of one replica's batch, in [0, microbatches).
using OptionalMicrobatch = OptionalId<MicrobatchTag>;

}  // namespace penstock

template <class Tag>
struct std::hash<penstock::Id<Tag>> {
  std::size_t operator()(const penstock::Id<Tag>& id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};
