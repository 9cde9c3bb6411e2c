// The families of models that Hugging Face folders hold, and what their config.json says of them.
//
// folder.h reads a model's options here.  A family that is not in the table is refused by name.  So
// is a field whose value changes what a model computes, if penstock's decoder cannot do it.  So is
// every other key that is set, unless config_keys.h says why it may be passed over.
// Source: the configuration classes of transformers 5.23, and the defaults there.
#pragma once
#include <string>
#include <vector>

#include "penstock/core/json/tree.h"
#include "penstock/nn/decoder.h"

namespace penstock::hugging_face {

// "gemma", "gpt2", "llama" and others, in the order of the alphabet: values of model_type.
std::vector<std::string> families();

// Throws: ConfigError with every value that is wrong or not supported, where it is written, and
// what is supported.
nn::DecoderOptions read_options(const json::Value& config);

// The standard deviation of random first weights: initializer_range, 0.02 where there is none.
// Throws: ConfigError.
double read_standard_deviation(const json::Value& config);

}  // namespace penstock::hugging_face
