// Chooses the source of each sample of training, by the sample's number alone.
//
// TokenSamples ask it.  Of each kMixturePeriod samples in a row, a source has as many as its weight
// says, spread evenly: any run of samples has a source's share, to within one of each source.  So
// neither seed nor layout has a say, and nothing has to be saved.  Knows no files.
// Invariants: a source's ordinals are 0, 1, 2, ... in the order of the samples.
#pragma once
#include <cstdint>
#include <vector>

namespace penstock::data {

inline constexpr std::int64_t kMixturePeriod = 1 << 16;

class Mixture {
 public:
  // Shares are rounded to parts of kMixturePeriod; the largest remainders are rounded up.
  // REQUIRES: weights are above 0 and finite.
  // Throws: ConfigError for more than 4096 of them, and for one too small to get a part.
  explicit Mixture(const std::vector<double>& weights);

  struct Place {
    std::int64_t source = 0;
    std::int64_t ordinal = 0;  // Number among the samples of that source.
  };
  // REQUIRES: sample >= 0.
  Place place(std::int64_t sample) const;

  // Samples of each source in a period.
  const std::vector<std::int64_t>& parts() const { return parts_; }

 private:
  struct Slot {
    std::uint32_t source;
    std::uint32_t ordinal;  // Number within the period.
  };
  std::vector<std::int64_t> parts_;
  std::vector<Slot> slots_;  // Slots of a period; one for a single source.
};

}  // namespace penstock::data
