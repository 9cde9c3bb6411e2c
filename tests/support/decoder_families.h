// What each family of decoders has that Llama has not, as options of one.
//
// Tests that have a decoder of sizes of their own take it through them.
#pragma once
#include <optional>
#include <string_view>

#include "penstock/core/check.h"
#include "penstock/nn/decoder.h"

namespace penstock::testing_support {

inline constexpr const char* kDecoderFamilies[] = {"Phi3",    "Granite", "Olmo2",
                                                   "SmolLM3", "Gemma2",  "Gemma3"};

// Every other layer, the first among them, has a window of `tokens`.
inline void alternate_windows(nn::DecoderOptions& options, std::int64_t tokens) {
  for (std::int64_t i = 0; i < options.layers; ++i) {
    options.windows.push_back(i % 2 == 0 ? std::optional(tokens) : std::nullopt);
  }
}

inline void give_gemmas(nn::DecoderOptions& options) {
  options.mlp = nn::MlpKind::GeGluTanh;
  options.norm_offset = 1.0;
  options.norm_places = nn::NormPlaces::Around;
  options.embedding_scale = 4.0;
  options.attention_scale = 0.7;
  options.tie_embeddings = true;
  alternate_windows(options, 4);
}

// Options like the family's models, with small caps and scales that show.
inline nn::DecoderOptions of_family(std::string_view family, nn::DecoderOptions options) {
  if (family == "Phi3") {
    options.kv_heads = options.heads;
    options.fuses_projections = true;
    options.rotary->share = 2.0 / 3;  // 2 of 4 elements, 4 of 6.
  } else if (family == "Granite") {
    options.embedding_scale = 3.0;
    options.residual_scale = 0.4;
    options.attention_scale = 0.3;
    options.logit_divisor = 2.0;
  } else if (family == "Olmo2") {
    options.norm_places = nn::NormPlaces::Behind;
    options.normalizes_queries_and_keys = options.normalizes_heads_together = true;
  } else if (family == "SmolLM3") {
    options.tie_embeddings = true;
    for (std::int64_t i = 0; i < options.layers; ++i) options.without_rotary.push_back(i == 1);
  } else if (family == "Gemma2") {
    give_gemmas(options);
    options.score_cap = 2.0;
    options.logit_cap = 3.0;
  } else {
    PENSTOCK_CHECK(family == "Gemma3", "no family");
    give_gemmas(options);
    options.normalizes_queries_and_keys = true;
    options.rotary_of_windows = nn::RotaryOptions{.theta = 100.0};
  }
  return options;
}

}  // namespace penstock::testing_support
