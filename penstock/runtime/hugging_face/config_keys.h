// The keys of a config.json that penstock passes over, by family, and why each may be.
//
// families.h refuses every other key that is set and that it does not read: it may change what the
// model computes.  Knows no values of a model.
// Source: the configuration classes of transformers 5.23, and what its models read of them.
#pragma once
#include <span>
#include <string_view>

#include "penstock/core/json/unread_members.h"

namespace penstock::hugging_face {

// `family` is a value of model_type.
std::span<const json::PassedOver> passed_over_keys(std::string_view family);

// Keys of "rope_parameters" and "rope_scaling".
std::span<const json::PassedOver> passed_over_rope_keys();

// Keys of a generation_config.json that are not of how tokens are chosen, or whose values are those
// of `penstock generate`.
std::span<const json::PassedOver> passed_over_generation_keys();

// Keys of adapter_config.json.
std::span<const json::PassedOver> passed_over_adapter_keys();

}  // namespace penstock::hugging_face
