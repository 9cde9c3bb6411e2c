// What a config.json says of rotary positions.
//
// families.h reads a family's with it.  transformers 5 writes "rope_parameters"; earlier ones wrote
// "rope_scaling", beside "rope_theta".  Knows no family but by what it is given.
// Source: modeling_rope_utils.py of transformers 5.23.
#pragma once
#include <cstdint>
#include <optional>

#include "penstock/runtime/hugging_face/config_fields.h"
#include "penstock/runtime/nn/rotary.h"

namespace penstock::hugging_face {

// What a family has where config.json says nothing, and what it can do.
struct RotaryFamily {
  double theta = 10000.0;
  std::int64_t head_dim = 0;
  std::int64_t positions = 0;  // Value of max_position_embeddings.
  // Present: the family's own default of original_max_position_embeddings.
  std::optional<std::int64_t> original_positions = {};
  bool turns_parts = false;  // partial_rotary_factor is read.
  bool is_phi = false;       // Its "su" and "yarn" are longrope, and it has no other scaling.
};

nn::RotaryOptions read_rotary(ConfigFields& fields, const RotaryFamily& family);

struct TwoRotaries {
  nn::RotaryOptions full;
  nn::RotaryOptions of_windows;
};
// Reads those of a family that turns layers with a window otherwise; `family` is what its other
// layers have.
TwoRotaries read_two_rotaries(ConfigFields& fields, const RotaryFamily& family,
                              double theta_of_windows);

}  // namespace penstock::hugging_face
