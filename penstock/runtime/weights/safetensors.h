// The safetensors file format: named tensors, nothing executable.
//
// weights.h writes models with it, tests read them back.  Strict: a file that breaks the format is
// an error, and a tensor's name never becomes a path.
// Source: the format's public description: a header (safetensors_header.h), then the bytes.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/atomic_file.h"
#include "penstock/files/checkpoint/safetensors_header.h"

namespace penstock::weights {

// The format's name of a type of torch's, and the other way round.
// Throws: CheckpointError for one that the format does not have; `name` is the tensor's.
checkpoint::ScalarType type_of(at::ScalarType type, const std::string& name);
at::ScalarType type_of(checkpoint::ScalarType type);

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Writes to a file beside `path` and renames it, so that `path` is old or new, never half.
// Throws: CheckpointError with the path and the system's reason, or for a type that has no name in
// the format.
// `advanced` is called after each piece of the file.
void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {},
                       const std::function<void()>& advanced = {});

// The same, of a file that is to change together with others.
PreparedFile prepare_safetensors(const std::string& path, const NamedTensors& tensors,
                                 const std::map<std::string, std::string>& metadata = {},
                                 const std::function<void()>& advanced = {});

// Throws: CheckpointError when the file cannot be read or breaks the format; it names the tensor,
// the offset and what was expected.
NamedTensors read_safetensors(const std::string& path);

}  // namespace penstock::weights
