#include "penstock/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "penstock/checkpoint/atomic_file.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::size_t kHeaderBytesMax = std::size_t{100} << 20;
constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 48;  // Of one tensor.

constexpr std::array<std::pair<at::ScalarType, const char*>, 9> kTypes = {{
    {at::kFloat, "F32"},
    {at::kDouble, "F64"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kLong, "I64"},
    {at::kInt, "I32"},
    {at::kShort, "I16"},
    {at::kByte, "U8"},
    {at::kBool, "BOOL"},
}};

const char* name_of(at::ScalarType type, const std::string& tensor) {
  for (const auto& [candidate, name] : kTypes) {
    if (candidate == type) return name;
  }
  throw CheckpointError(str("tensor \"", tensor, "\" has type ", at::toString(type),
                            ", which safetensors cannot hold"));
}

at::ScalarType type_of(const std::string& name, const std::string& tensor,
                       const std::string& path) {
  std::vector<std::string> known;
  for (const auto& [type, candidate] : kTypes) {
    if (name == candidate) return type;
    known.emplace_back(candidate);
  }
  throw CheckpointError(str("\"", path, "\": tensor \"", tensor, "\" has dtype \"", name,
                            "\", known are ", join(known, ", ")));
}

std::string header_of(const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> entries;
  std::vector<std::string> facts;
  for (const auto& [key, value] : metadata) {
    facts.push_back(str(json_quote(key), ":", json_quote(value)));
  }
  if (!facts.empty()) entries.push_back(str("\"__metadata__\":{", join(facts, ","), "}"));
  std::size_t offset = 0;
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second) {
      throw CheckpointError(str("two tensors are called \"", name, "\""));
    }
    const std::size_t end = offset + tensor.nbytes();
    entries.push_back(penstock::str(
        json_quote(name), ":{\"dtype\":\"", name_of(tensor.scalar_type(), name), "\",\"shape\":[",
        join(tensor.sizes(), ","), "],\"data_offsets\":[", offset, ",", end, "]}"));
    offset = end;
  }
  std::string header = str("{", join(entries, ","), "}");
  header.append((kLengthBytes - header.size() % kLengthBytes) % kLengthBytes, ' ');
  return header;
}

// A JSON object whose keys are all different, or nothing.
nlohmann::json parse_header(std::string_view text, const std::string& path) {
  std::vector<std::set<std::string>> open_objects;
  bool twice = false;
  const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key && !open_objects.back().insert(value.get<std::string>()).second) {
      twice = true;
    }
    return true;
  };
  auto header = nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
  if (!header.is_object() || twice) {
    throw CheckpointError(str("\"", path, "\": its header is not a JSON object",
                              twice ? " with different keys" : ""));
  }
  return header;
}

struct Entry {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Natural numbers below 2^63 and nothing else; nlohmann's get() would also take 1.5 and true.
std::vector<std::int64_t> natural_numbers(const nlohmann::json& value) {
  std::vector<std::int64_t> numbers;
  for (const auto& item : value.get_ref<const nlohmann::json::array_t&>()) {
    const auto number = item.get_ref<const nlohmann::json::number_unsigned_t&>();
    numbers.push_back(static_cast<std::int64_t>(number));
    if (numbers.back() < 0) throw std::out_of_range("too large");
  }
  return numbers;
}

Entry parse_entry(const std::string& name, const nlohmann::json& value, const std::string& path) {
  Entry entry{.name = name};
  try {
    entry.type = type_of(value.at("dtype").get<std::string>(), name, path);
    entry.shape = natural_numbers(value.at("shape"));
    const auto offsets = natural_numbers(value.at("data_offsets"));
    if (offsets.size() != 2) throw std::out_of_range("not a pair");
    entry.begin = static_cast<std::uint64_t>(offsets[0]);
    entry.end = static_cast<std::uint64_t>(offsets[1]);
  } catch (const CheckpointError&) {
    throw;
  } catch (const std::exception&) {
    throw CheckpointError(str("\"", path, "\": tensor \"", name,
                              "\" needs a dtype, a shape and two data_offsets, all in whole "
                              "numbers; it has ",
                              value.dump().substr(0, 200)));
  }
  // Sizes beside a zero count too: torch multiplies them into strides.
  std::uint64_t span = at::elementSize(entry.type);
  bool empty = false;
  for (const std::int64_t size : entry.shape) {
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
    if (span > kBytesMax / factor) {
      throw CheckpointError(str("\"", path, "\": tensor \"", name, "\" has an impossible shape [",
                                join(entry.shape, ", "), "]"));
    }
    span *= factor;
    empty = empty || size == 0;
  }
  const std::uint64_t bytes = empty ? 0 : span;
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    throw CheckpointError(str("\"", path, "\": tensor \"", name, "\" needs ", bytes,
                              " bytes, its data_offsets are [", entry.begin, ", ", entry.end, "]"));
  }
  return entry;
}

}  // namespace

void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = header_of(tensors, metadata);
  const std::uint64_t length = header.size();
  std::string length_bytes(kLengthBytes, '\0');
  std::memcpy(length_bytes.data(), &length, kLengthBytes);
  std::vector<at::Tensor> kept;
  std::vector<std::string_view> pieces = {length_bytes, header};
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.detach().contiguous().cpu());
    pieces.emplace_back(static_cast<const char*>(kept.back().const_data_ptr()),
                        kept.back().nbytes());
  }
  write_atomically(path, pieces);
}

NamedTensors read_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw CheckpointError(str("cannot read \"", path, "\": ", std::strerror(errno)));
  const std::string content(std::istreambuf_iterator<char>(file), {});
  std::uint64_t length = 0;
  if (content.size() >= kLengthBytes) std::memcpy(&length, content.data(), kLengthBytes);
  if (content.size() < kLengthBytes || length > kHeaderBytesMax ||
      length > content.size() - kLengthBytes) {
    throw CheckpointError(str("\"", path, "\" is no safetensors file: ", content.size(),
                              " bytes, a header of ", length));
  }
  const std::string_view text = std::string_view(content).substr(kLengthBytes, length);
  const std::string_view data = std::string_view(content).substr(kLengthBytes + length);
  const nlohmann::json header = parse_header(text, path);

  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") entries.push_back(parse_entry(name, value, path));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  NamedTensors tensors;
  std::uint64_t offset = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != offset || entry.end > data.size()) {
      throw CheckpointError(str("\"", path, "\": tensor \"", entry.name, "\" lies at [",
                                entry.begin, ", ", entry.end, "), expected to start at ", offset,
                                " and to end by ", data.size()));
    }
    const at::Tensor tensor = at::empty(entry.shape, entry.type);
    if (entry.end > entry.begin) {
      std::memcpy(tensor.data_ptr(), data.data() + entry.begin, entry.end - entry.begin);
    }
    tensors.emplace_back(entry.name, tensor);
    offset = entry.end;
  }
  if (offset != data.size()) {
    throw CheckpointError(
        str("\"", path, "\": ", data.size() - offset, " bytes after the last tensor"));
  }
  return tensors;
}

}  // namespace penstock::checkpoint
