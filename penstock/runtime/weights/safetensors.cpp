#include "penstock/runtime/weights/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/safetensors_header.h"
#include "penstock/files/checkpoint/weights_file.h"
#include "penstock/runtime/weights/atomic_file.h"

namespace penstock::weights {
namespace {

// Types in the order of ScalarType.
constexpr std::array<at::ScalarType, checkpoint::kScalarTypes.size()> kTypes = {
    at::kFloat,  at::kDouble,        at::kHalf,        at::kBFloat16,    at::kLong,   at::kInt,
    at::kShort,  at::kByte,          at::kBool,        at::kChar,        at::kUInt16, at::kUInt32,
    at::kUInt64, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kComplexFloat};

checkpoint::SafetensorsHeader header_of(const NamedTensors& tensors,
                                        const std::map<std::string, std::string>& metadata) {
  checkpoint::SafetensorsHeader header{.metadata = metadata};
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    header.entries.push_back({.name = name,
                              .type = type_of(tensor.scalar_type(), name),
                              .shape = tensor.sizes().vec(),
                              .begin = offset,
                              .end = offset + tensor.nbytes()});
    offset = header.entries.back().end;
  }
  return header;
}

// The bytes of a file, and the tensors in host memory that have them.
class FileContent {
 public:
  FileContent(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata,
              const std::function<void()>& advanced)
      : header_(checkpoint::to_bytes(header_of(tensors, metadata))) {
    for (const auto& [name, tensor] : tensors) {
      tensors_.push_back(tensor.detach().contiguous().cpu().resolve_conj().resolve_neg());
      if (advanced) advanced();
    }
  }

  std::vector<std::string_view> pieces() const {
    std::vector<std::string_view> pieces = {header_};
    for (const at::Tensor& each : tensors_) {
      pieces.emplace_back(static_cast<const char*>(each.const_data_ptr()), each.nbytes());
    }
    return pieces;
  }

 private:
  std::string header_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace

checkpoint::ScalarType type_of(at::ScalarType type, const std::string& name) {
  const auto found = std::ranges::find(kTypes, type);
  if (found != kTypes.end()) return static_cast<checkpoint::ScalarType>(found - kTypes.begin());
  throw CheckpointError(str("tensor \"", name, "\" has type ", at::toString(type),
                            ", which safetensors cannot hold"));
}

at::ScalarType type_of(checkpoint::ScalarType type) {
  return kTypes[static_cast<std::size_t>(type)];
}

PreparedFile prepare_safetensors(const std::string& path, const NamedTensors& tensors,
                                 const std::map<std::string, std::string>& metadata,
                                 const std::function<void()>& advanced) {
  const FileContent content(tensors, metadata, advanced);
  try {
    return {path, content.pieces(), advanced};
  } catch (const Error& error) {
    throw CheckpointError(error.message());
  }
}

void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<void()>& advanced) {
  write_atomically(path, FileContent(tensors, metadata, advanced).pieces(), advanced);
}

NamedTensors read_safetensors(const std::string& path) {
  const checkpoint::WeightsFile file(path);
  const checkpoint::ParsedHeader parsed = file.read_header();
  NamedTensors tensors;
  for (const checkpoint::HeaderEntry& entry : parsed.header.entries) {
    const at::Tensor tensor = at::empty(entry.shape, kTypes[static_cast<std::size_t>(entry.type)]);
    file.read(parsed.bytes + entry.begin,
              {static_cast<std::byte*>(tensor.data_ptr()), entry.end - entry.begin});
    tensors.emplace_back(entry.name, tensor);
  }
  return tensors;
}

}  // namespace penstock::weights
