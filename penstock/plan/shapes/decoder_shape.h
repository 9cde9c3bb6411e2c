// The sizes of a decoder whose layers have experts, as its config.json says them.
//
// decoder_layers.h makes layers of it.  Families whose layers can run are read elsewhere, below the
// torch line.  Knows no ranks.
// Source: the configuration classes of transformers, and the defaults there.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/core/json/tree.h"

namespace penstock::shapes {

// Keys and values are made from a narrow vector, which is what is kept of a token.
struct LatentAttention {
  std::int64_t query = 0;  // Width of the narrow query; 0: queries are made at once.
  std::int64_t key_value = 0;
  std::int64_t rotary = 0;  // Part of a head's width that turns, and that keys share.
  std::int64_t plain = 0;
  std::int64_t value = 0;  // Width of a head's values.
};

struct Experts {
  std::int64_t count = 0;     // Experts of a layer.
  std::int64_t of_token = 0;  // Experts that a token goes to.
  std::int64_t width = 0;
  std::int64_t shared_width = 0;  // Width of what all tokens go to; 0: there is none.
};

struct DecoderShape {
  std::string family;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head = 0;   // Width of a head.
  LatentAttention latent;  // key_value 0: it has none.
  std::int64_t width = 0;  // Width of layers without experts.
  Experts experts;
  std::vector<bool> has_experts;  // Whether each layer has some.
  std::int64_t vocabulary = 0;
  bool has_ties = false;
  bool has_head_norms = false;  // Queries and keys have norms.

  bool is_latent() const { return latent.key_value > 0; }
};

// "deepseek_v3", "mixtral", ...: the values of model_type that have experts.
std::vector<std::string> families_with_experts();

// Whether a config.json is of such a family.
bool is_with_experts(const json::Value& config);

// Throws: ConfigError with every key that is missing or has a value that cannot be, where it is.
DecoderShape read_shape(const json::Value& config);

}  // namespace penstock::shapes
