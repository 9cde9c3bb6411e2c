// What a config.json says of single layers: which have a window, and which know no positions.
//
// families.h reads a family's with it.  Knows no family.
// Source: the configuration classes of transformers 5.23.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/nn/decoder.h"
#include "penstock/runtime/hugging_face/config_fields.h"

namespace penstock::hugging_face {

// The value of sliding_window; null is none, and absent is `fallback`.
std::optional<std::int64_t> read_window(ConfigFields& fields, std::optional<std::int64_t> fallback);

// Reads which layers of a Qwen have the window: those that layer_types says, or those from
// max_window_layers on.
void read_qwen_windows(ConfigFields& fields, nn::DecoderOptions& options);

// Gives the window to the layers that layer_types says; where that is absent, to all but every
// `period`-th.
void read_alternating_windows(ConfigFields& fields, nn::DecoderOptions& options,
                              std::int64_t period, std::int64_t fallback);

// Reads which layers of a SmolLM3 know no positions, and which have a window.
void read_smollm3_layers(ConfigFields& fields, nn::DecoderOptions& options);

}  // namespace penstock::hugging_face
