#include "penstock/runtime/hugging_face/rotary_fields.h"

#include <cmath>
#include <string>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/runtime/hugging_face/config_keys.h"

namespace penstock::hugging_face {
namespace {

using nn::RotaryOptions;
using nn::RotaryScaling;

constexpr const char* kNew = "rope_parameters";
constexpr const char* kOld = "rope_scaling";
constexpr const char* kFullLayers = "full_attention";
constexpr const char* kSlidingLayers = "sliding_attention";
constexpr const char* kOriginal = "original_max_position_embeddings";
constexpr const char* kShare = "partial_rotary_factor";

// The share of a head that is turned, at either place.
double read_share(ConfigFields& fields, const RotaryFamily& family, double fallback) {
  const double share = fields.number(kShare, fallback);
  if (!family.turns_parts && share != 1.0) fields.refuse(kShare, "penstock turns whole heads");
  const std::int64_t turned = nn::turned_elements({.share = share}, family.head_dim);
  if (share > 1.0 || turned % 2 != 0 || turned == 0) {
    fields.refuse(kShare, str("turns ", turned, " of ", family.head_dim,
                              " elements of a head: must be even, above 0, and no more than all"));
  }
  return share;
}

RotaryScaling read_type(ConfigFields& scaling, const RotaryFamily& family) {
  const char* const key = scaling.has("rope_type") ? "rope_type" : "type";
  if (family.is_phi) {
    const std::string type = scaling.choice(key, "default", {"default", "longrope", "su", "yarn"});
    return type == "default" ? RotaryScaling::Off : RotaryScaling::LongRope;
  }
  const std::string type = scaling.choice(
      key, "default", {"default", "linear", "dynamic", "yarn", "longrope", "llama3"});
  if (type == "linear") return RotaryScaling::Linear;
  if (type == "dynamic") return RotaryScaling::Dynamic;
  if (type == "yarn") return RotaryScaling::Yarn;
  if (type == "longrope") return RotaryScaling::LongRope;
  return type == "llama3" ? RotaryScaling::Llama3 : RotaryScaling::Off;
}

void read_llama3(ConfigFields& scaling, RotaryOptions& rotary) {
  rotary.factor = scaling.number("factor");
  rotary.low_frequency_factor = scaling.number("low_freq_factor");
  rotary.high_frequency_factor = scaling.number("high_freq_factor");
  if (rotary.high_frequency_factor <= rotary.low_frequency_factor) {
    scaling.refuse("high_freq_factor", "must be above low_freq_factor");
  }
}

// YaRN's factor of cosines and sines, for a scaling by `factor`.
double yarn_magnitude(double factor, double share = 1.0) {
  return factor <= 1.0 ? 1.0 : 0.1 * share * std::log(factor) + 1.0;
}

void read_yarn(ConfigFields& scaling, RotaryOptions& rotary) {
  rotary.factor = scaling.number("factor");
  rotary.high_turns = scaling.number("beta_fast", 32.0);
  rotary.low_turns = scaling.number("beta_slow", 1.0);
  const bool is_null = scaling.is_written("truncate") && !scaling.has("truncate");
  rotary.rounds_places = scaling.flag("truncate", !is_null);
  const auto magnitude = scaling.optional_number("attention_factor", {});
  const auto share = scaling.optional_number("mscale", {});
  const auto share_of_all = scaling.optional_number("mscale_all_dim", {});
  if (magnitude) {
    rotary.magnitude = *magnitude;
  } else if (share && share_of_all) {
    rotary.magnitude =
        yarn_magnitude(rotary.factor, *share) / yarn_magnitude(rotary.factor, *share_of_all);
  } else {
    rotary.magnitude = yarn_magnitude(rotary.factor);
  }
}

std::vector<double> read_divisors(ConfigFields& scaling, const char* key, std::size_t pairs) {
  const auto divisors = scaling.numbers(key);
  if (!divisors || divisors->size() != pairs) {
    scaling.refuse(key, str("expected ", pairs, " numbers, one for each pair that is turned"));
    return std::vector<double>(pairs, 1.0);
  }
  return *divisors;
}

void read_longrope(ConfigFields& scaling, RotaryOptions& rotary, const RotaryFamily& family) {
  const auto pairs = static_cast<std::size_t>(nn::turned_elements(rotary, family.head_dim)) / 2;
  rotary.short_divisors = read_divisors(scaling, "short_factor", pairs);
  rotary.long_divisors = read_divisors(scaling, "long_factor", pairs);
  const auto original = static_cast<double>(rotary.original_positions);
  const double factor = scaling.number("factor", static_cast<double>(family.positions) / original);
  const double usual = factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(original));
  rotary.magnitude = scaling.number("attention_factor", usual);
}

// Reads an object of rotary parameters over what stands beside it.
RotaryOptions read_parameters(ConfigFields& fields, ConfigFields& scaling, RotaryOptions rotary,
                              const RotaryFamily& family) {
  rotary.theta = scaling.number("rope_theta", rotary.theta);
  if (scaling.has(kShare)) rotary.share = read_share(scaling, family, rotary.share);
  rotary.scaling = read_type(scaling, family);
  const bool has_original = rotary.scaling == RotaryScaling::Llama3 ||
                            rotary.scaling == RotaryScaling::Yarn ||
                            rotary.scaling == RotaryScaling::LongRope;
  rotary.original_positions = family.positions;
  if (has_original) {
    const std::int64_t within = scaling.count(kOriginal, family.positions);
    rotary.original_positions = fields.count(kOriginal, family.original_positions.value_or(within));
  }
  switch (rotary.scaling) {
    case RotaryScaling::Off:
      break;
    case RotaryScaling::Linear:
    case RotaryScaling::Dynamic:
      rotary.factor = scaling.number("factor");
      break;
    case RotaryScaling::Llama3:
      read_llama3(scaling, rotary);
      break;
    case RotaryScaling::Yarn:
      read_yarn(scaling, rotary);
      break;
    case RotaryScaling::LongRope:
      read_longrope(scaling, rotary, family);
      break;
  }
  scaling.refuse_unread(passed_over_rope_keys());
  fields.take_problems(scaling);
  return rotary;
}

bool has_both(ConfigFields& fields) {
  if (!fields.has(kNew) || !fields.has(kOld)) return false;
  fields.refuse(kOld, "rope_parameters is there, too: which one is meant?");
  return true;
}

}  // namespace

RotaryOptions read_rotary(ConfigFields& fields, const RotaryFamily& family) {
  RotaryOptions rotary{.theta = fields.number("rope_theta", family.theta),
                       .share = read_share(fields, family, 1.0),
                       .original_positions = family.positions};
  has_both(fields);
  auto scaling = fields.object(fields.has(kNew) ? kNew : kOld);
  if (scaling) {
    if (scaling->has(kFullLayers))
      scaling->refuse(kFullLayers, "penstock has one base for all layers");
    rotary = read_parameters(fields, *scaling, rotary, family);
  }
  if (family.original_positions) fields.count(kOriginal, *family.original_positions);
  return rotary;
}

TwoRotaries read_two_rotaries(ConfigFields& fields, const RotaryFamily& family,
                              double theta_of_windows) {
  const auto plain = [&](double theta) {
    return RotaryOptions{.theta = theta, .original_positions = family.positions};
  };
  TwoRotaries two{.full = plain(fields.number("rope_theta", family.theta)),
                  .of_windows = plain(fields.number("rope_local_base_freq", theta_of_windows))};
  has_both(fields);
  if (auto scaling = fields.object(kOld)) {
    two.full = read_parameters(fields, *scaling, two.full, family);
  }
  auto both = fields.object(kNew);
  if (!both) return two;
  for (const auto& [key, rotary] :
       {std::pair(kFullLayers, &two.full), {kSlidingLayers, &two.of_windows}}) {
    if (auto scaling = both->object(key)) {
      *rotary = read_parameters(*both, *scaling, *rotary, family);
    }
  }
  both->refuse_unread({});
  fields.take_problems(*both);
  return two;
}

}  // namespace penstock::hugging_face
