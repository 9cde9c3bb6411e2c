#include "penstock/files/checkpoint/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "penstock/core/error.h"
#include "penstock/core/stand_in.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::size_t kHeaderBytesMax = std::size_t{100} << 20;
constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 48;  // Limit on one tensor.
constexpr int kDepthMax = 3;                                 // {"name": {"shape": [...

ScalarType type_of(const std::string& name, const std::string& tensor, const std::string& path) {
  const auto found = std::ranges::find(kScalarTypes, name);
  if (found != kScalarTypes.end()) return static_cast<ScalarType>(found - kScalarTypes.begin());
  throw CheckpointError(str(quoted_path(path), ": tensor \"", tensor, "\" has dtype \"", name,
                            "\", known are ", join(kScalarTypes, ", ")));
}

// A JSON object whose keys are all different and which is no deeper than the format.
nlohmann::json parse_json(std::string_view text, const std::string& path) {
  std::vector<std::set<std::string>> open_objects;
  bool twice = false;
  bool deep = false;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key && !open_objects.back().insert(value.get<std::string>()).second) {
      twice = true;
    }
    deep = deep || depth > kDepthMax;
    return depth <= kDepthMax;  // What is deeper is not kept: it could exhaust the stack.
  };
  auto header = nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
  if (!header.is_object() || twice || deep) {
    throw CheckpointError(str(quoted_path(path), ": its header is not a JSON object",
                              twice ? " with different keys" : "",
                              deep ? str(" of at most ", kDepthMax, " levels") : ""));
  }
  return header;
}

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

// The bytes of a tensor.  Sizes beside a zero count too: torch multiplies them into strides.
std::uint64_t bytes_needed(const HeaderEntry& entry, const std::string& path) {
  std::uint64_t span = bytes_of(entry.type);
  for (const std::int64_t size : entry.shape) {
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
    if (span > kBytesMax / factor) {
      throw CheckpointError(str(quoted_path(path), ": tensor \"", entry.name,
                                "\" has an impossible shape [", join(entry.shape, ", "), "]"));
    }
    span *= factor;
  }
  const bool empty = std::ranges::find(entry.shape, 0) != entry.shape.end();
  return empty ? 0 : span;
}

HeaderEntry parse_entry(const std::string& name, const nlohmann::json& value,
                        const std::string& path) {
  HeaderEntry entry{.name = name};
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
    throw CheckpointError(str(quoted_path(path), ": tensor \"", name,
                              "\" needs a dtype, a shape and two data_offsets, all in whole "
                              "numbers; it has ",
                              value.dump().substr(0, 200)));
  }
  const std::uint64_t bytes = bytes_needed(entry, path);
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    throw CheckpointError(str(quoted_path(path), ": tensor \"", name, "\" needs ", bytes,
                              " bytes, its data_offsets are [", entry.begin, ", ", entry.end, "]"));
  }
  return entry;
}

std::map<std::string, std::string> parse_metadata(const nlohmann::json& value,
                                                  const std::string& path) {
  try {
    return value.get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(str(quoted_path(path), ": its __metadata__ is not an object of texts"));
  }
}

// Sorts the entries by their bytes, which must follow each other and fill `data_bytes`.
void settle(std::vector<HeaderEntry>& entries, std::uint64_t data_bytes, const std::string& path) {
  std::ranges::stable_sort(
      entries, {}, [](const HeaderEntry& entry) { return std::pair(entry.begin, entry.end); });
  std::uint64_t offset = 0;
  for (const HeaderEntry& entry : entries) {
    if (entry.begin != offset || entry.end > data_bytes) {
      throw CheckpointError(str(quoted_path(path), ": tensor \"", entry.name, "\" lies at [",
                                entry.begin, ", ", entry.end, "), expected to start at ", offset,
                                " and to end by ", data_bytes));
    }
    offset = entry.end;
  }
  if (offset != data_bytes) {
    throw CheckpointError(
        str(quoted_path(path), ": ", data_bytes - offset, " bytes after the last tensor"));
  }
}

// What is downloaded or cloned in place of weights; empty where nothing is known.
std::string_view other_kind(std::string_view first) {
  if (first.empty()) return "it is empty";
  if (first.starts_with("PK\x03\x04")) return "it is what torch.save() writes";
  return stand_in(first);
}

}  // namespace

std::uint64_t bytes_of(ScalarType type) {
  switch (type) {
    case ScalarType::F64:
    case ScalarType::I64:
    case ScalarType::U64:
    case ScalarType::C64:
      return 8;
    case ScalarType::F32:
    case ScalarType::I32:
    case ScalarType::U32:
      return 4;
    case ScalarType::F16:
    case ScalarType::BF16:
    case ScalarType::I16:
    case ScalarType::U16:
      return 2;
    case ScalarType::U8:
    case ScalarType::Boolean:
    case ScalarType::I8:
    case ScalarType::F8_E4M3:
    case ScalarType::F8_E5M2:
      return 1;
  }
  return 0;
}

std::string to_bytes(const SafetensorsHeader& header) {
  std::vector<std::string> members;
  std::vector<std::string> facts;
  for (const auto& [key, value] : header.metadata) {
    facts.push_back(str(json_quote(key), ":", json_quote(value)));
  }
  if (!facts.empty()) members.push_back(str("\"__metadata__\":{", join(facts, ","), "}"));
  std::set<std::string_view> names;
  for (const HeaderEntry& entry : header.entries) {
    if (!names.insert(entry.name).second) {
      throw CheckpointError(str("two tensors are called \"", entry.name, "\""));
    }
    members.push_back(str(json_quote(entry.name), ":{\"dtype\":\"",
                          kScalarTypes[static_cast<std::size_t>(entry.type)], "\",\"shape\":[",
                          join(entry.shape, ","), "],\"data_offsets\":[", entry.begin, ",",
                          entry.end, "]}"));
  }
  std::string text = str("{", join(members, ","), "}");
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  return bytes + text;
}

std::uint64_t header_end(std::string_view first, std::uint64_t bytes, const std::string& path) {
  std::uint64_t length = 0;
  if (first.size() >= kLengthBytes) std::memcpy(&length, first.data(), kLengthBytes);
  if (first.size() >= kLengthBytes && length <= kHeaderBytesMax && length <= bytes - kLengthBytes) {
    return kLengthBytes + length;
  }
  const std::string_view other = other_kind(first);
  throw CheckpointError(
      str(quoted_path(path), " is no safetensors file: ",
          other.empty() ? str(bytes, " bytes, a header of ", length) : std::string(other)));
}

ParsedHeader parse_header(std::string_view content, const std::string& path) {
  return parse_header(content, content.size(), path);
}

ParsedHeader parse_header(std::string_view content, std::uint64_t bytes, const std::string& path) {
  ParsedHeader parsed{.bytes = header_end(content, bytes, path)};
  const nlohmann::json json =
      parse_json(content.substr(kLengthBytes, parsed.bytes - kLengthBytes), path);
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      parsed.header.metadata = parse_metadata(value, path);
    } else {
      parsed.header.entries.push_back(parse_entry(name, value, path));
    }
  }
  settle(parsed.header.entries, bytes - parsed.bytes, path);
  return parsed;
}

}  // namespace penstock::checkpoint
