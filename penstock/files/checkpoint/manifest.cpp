#include "penstock/files/checkpoint/manifest.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

constexpr std::string_view kFormat = "penstock checkpoint";
constexpr std::string_view kDigestKey = "\n  \"xxh3_128\": \"";
constexpr std::string_view kDigestEnd = "\"\n}\n";
constexpr std::string_view kShardPrefix = "shard-";
constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::size_t kDigestDigits = 32;
constexpr std::int64_t kElementsMax = std::int64_t{1} << 48;
constexpr std::size_t kDimensionsMax = 64;
constexpr std::size_t kShardsMax = std::size_t{1} << 20;

std::string_view name_of(ScalarType type) { return kScalarTypes[static_cast<std::size_t>(type)]; }

std::string to_text(const Texts& texts) {
  std::vector<std::string> members;
  for (const auto& [key, value] : texts) {
    members.push_back(str("    ", json_quote(key), ": ", json_quote(value)));
  }
  return members.empty() ? "{}" : str("{\n", join(members, ",\n"), "\n  }");
}

std::string to_text(const Shard& shard) {
  std::vector<std::string> chunks;
  for (const Digest& digest : shard.chunks) chunks.push_back(str('"', to_string(digest), '"'));
  return str("    {\"bytes\": ", shard.bytes, ", \"header_bytes\": ", shard.header_bytes,
             ", \"chunks\": [", join(chunks, ", "), "]}");
}

std::string to_text(const Box& box) {
  std::vector<std::string> dimensions;
  for (const Runs& each : box) {
    const std::string more = each.times > 1 ? str(", ", each.times, ", ", each.every) : "";
    dimensions.push_back(str("[", each.first, ", ", each.count, more, "]"));
  }
  return str("[", join(dimensions, ", "), "]");
}

std::string to_text(const Tensor& tensor) {
  std::vector<std::string> pieces;
  for (const Piece& piece : tensor.pieces) {
    pieces.push_back(str("[", piece.first, ", ", piece.count, ", ", piece.shard, ", ", piece.offset,
                         piece.box.empty() ? "" : str(", ", to_text(piece.box)), "]"));
  }
  return str("    {\"name\": ", json_quote(tensor.name), ", \"state\": ", json_quote(tensor.state),
             ", \"dtype\": \"", name_of(tensor.type), "\", \"shape\": [", join(tensor.shape, ", "),
             "], \"pieces\": [", join(pieces, ", "), "]}");
}

template <class Each>
std::string list_of(const std::vector<Each>& all) {
  std::vector<std::string> texts;
  for (const Each& each : all) texts.push_back(to_text(each));
  return texts.empty() ? "[]" : str("[\n", join(texts, ",\n"), "\n  ]");
}

// What is wrong with a manifest, where.
[[noreturn]] void refuse(const json::Value& value, const std::string& what) {
  throw CheckpointError(
      str(json::to_string(json::origin_of(value)), ": ", what, ", found ", json::found(value)));
}

const json::Value::Object& object_of(const json::Value& value, std::string_view what) {
  if (const auto* object = std::get_if<json::Value::Object>(&value.data)) return *object;
  refuse(value, str(what, " must be an object"));
}

const json::Value::Array& list_of(const json::Value& value, std::string_view what) {
  if (const auto* list = std::get_if<json::Value::Array>(&value.data)) return *list;
  refuse(value, str(what, " must be a list"));
}

const json::Value& member(const json::Value& parent, std::string_view key) {
  const json::Member* const found = json::find(object_of(parent, "this"), key);
  if (found == nullptr) refuse(parent, str("expected a member ", in_quotes(key)));
  return found->value;
}

std::string text_of(const json::Value& value, std::string_view what) {
  if (const auto* text = std::get_if<std::string>(&value.data)) return *text;
  refuse(value, str(what, " must be a text"));
}

std::int64_t natural(const json::Value& value, std::string_view what, std::int64_t most) {
  const auto* number = std::get_if<std::int64_t>(&value.data);
  if (number == nullptr || *number < 0 || *number > most) {
    refuse(value, str(what, " must be a whole number from 0 to ", most));
  }
  return *number;
}

std::size_t index(const json::Value& value, std::string_view what, std::size_t end) {
  if (end == 0) refuse(value, str(what, " is of none"));
  return static_cast<std::size_t>(natural(value, what, static_cast<std::int64_t>(end) - 1));
}

constexpr std::int64_t kNumberMax = std::int64_t{1} << 60;

Texts parse_texts(const json::Value& value, std::string_view what) {
  Texts texts;
  for (const json::Member& each : object_of(value, what)) {
    texts[each.key] = text_of(each.value, what);
  }
  return texts;
}

Shard parse_shard(const json::Value& value) {
  Shard shard;
  shard.bytes = static_cast<std::uint64_t>(natural(member(value, "bytes"), "bytes", kNumberMax));
  shard.header_bytes = static_cast<std::uint64_t>(
      natural(member(value, "header_bytes"), "header_bytes", kNumberMax));
  if (shard.header_bytes > shard.bytes) refuse(value, "header_bytes must be at most bytes");
  for (const json::Value& each : list_of(member(value, "chunks"), "chunks")) {
    const auto digest = parse_digest(text_of(each, "a digest"));
    if (!digest) refuse(each, "a digest has 32 digits from 0 to f");
    shard.chunks.push_back(*digest);
  }
  const std::uint64_t chunks = (shard.bytes + kChunkBytes - 1) / kChunkBytes;
  if (shard.chunks.size() != chunks) {
    refuse(value, str(shard.bytes, " bytes must have ", chunks, " digests"));
  }
  return shard;
}

ScalarType parse_type(const json::Value& value) {
  const auto found = std::ranges::find(kScalarTypes, text_of(value, "dtype"));
  if (found == kScalarTypes.end()) {
    refuse(value, str("dtype must be one of ", join(kScalarTypes, ", ")));
  }
  return static_cast<ScalarType>(found - kScalarTypes.begin());
}

Runs parse_runs(const json::Value& value, std::int64_t size) {
  const auto& numbers = list_of(value, "an interval of a box");
  if (numbers.size() != 2 && numbers.size() != 4) {
    refuse(value, "an interval of a box has two numbers, or four of a number of intervals");
  }
  Runs runs{.first = natural(numbers[0], "an interval's first index", size)};
  runs.count = natural(numbers[1], "an interval's indices", size - runs.first);
  if (numbers.size() == 2) return runs;
  runs.times = natural(numbers[2], "a number of intervals", kRunsMax);
  runs.every = natural(numbers[3], "the distance of intervals", size);
  const std::int64_t room = size - runs.first - runs.count;
  if (runs.times < 2 || runs.every <= runs.count || runs.every > room / (runs.times - 1)) {
    refuse(value, str("several intervals of a dimension of ", size, " lie apart, and within it"));
  }
  return runs;
}

Box parse_box(const json::Value& value, const Sizes& shape) {
  const auto& dimensions = list_of(value, "a box");
  if (dimensions.size() != shape.size()) {
    refuse(value, str("the box of a tensor of ", shape.size(), " dimensions has as many"));
  }
  Box box;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    box.push_back(parse_runs(dimensions[d], shape[d]));
  }
  return simplest(std::move(box), shape);
}

Piece parse_piece(const json::Value& value, const Tensor& tensor, const std::vector<Shard>& shards,
                  std::int64_t version) {
  const auto& numbers = list_of(value, "a piece");
  const bool has_box = version > 1 && numbers.size() == 5;
  if (numbers.size() != 4 && !has_box)
    refuse(value, "a piece has four numbers, and may have a box");
  Piece piece;
  if (has_box) piece.box = parse_box(numbers[4], tensor.shape);
  const std::int64_t elements = elements_of(sizes_of(piece.box, tensor.shape));
  piece.first = natural(numbers[0], "a piece's first element", elements);
  piece.count = natural(numbers[1], "a piece's number of elements", elements);
  piece.shard = index(numbers[2], "a piece's shard", shards.size());
  const Shard& shard = shards[piece.shard];
  const std::uint64_t bytes = static_cast<std::uint64_t>(piece.count) * bytes_of(tensor.type);
  const std::uint64_t room = shard.bytes - shard.header_bytes;
  if (bytes > room) refuse(value, str("a piece of ", bytes, " bytes is longer than its shard"));
  const auto begin =
      natural(numbers[3], "a piece's offset", static_cast<std::int64_t>(shard.bytes - bytes));
  piece.offset = static_cast<std::uint64_t>(begin);
  if (piece.offset < shard.header_bytes)
    refuse(value, "a piece must lie behind its shard's header");
  return piece;
}

Tensor parse_tensor(const json::Value& value, const std::vector<Shard>& shards,
                    std::int64_t version) {
  Tensor tensor{.name = text_of(member(value, "name"), "name"),
                .state = text_of(member(value, "state"), "state"),
                .type = parse_type(member(value, "dtype"))};
  std::int64_t room = kElementsMax;
  const json::Value& shape = member(value, "shape");
  if (list_of(shape, "shape").size() > kDimensionsMax) {
    refuse(shape, str("a shape has at most ", kDimensionsMax, " sizes"));
  }
  for (const json::Value& each : list_of(shape, "shape")) {
    tensor.shape.push_back(natural(each, "a size", room));
    room /= std::max<std::int64_t>(tensor.shape.back(), 1);
  }
  for (const json::Value& each : list_of(member(value, "pieces"), "pieces")) {
    tensor.pieces.push_back(parse_piece(each, tensor, shards, version));
  }
  return tensor;
}

std::string title(const Tensor& tensor) {
  return str(tensor.state == kWeight ? "tensor " : str(in_quotes(tensor.state), " of "),
             in_quotes(tensor.name));
}

auto key_of(const Tensor& tensor) { return std::tie(tensor.name, tensor.state); }

// Throws: CheckpointError unless the pieces, which are of one box, are it, each element once.
void check_runs(const Tensor& tensor, std::span<const Piece> pieces, const std::string& where) {
  const Box box = pieces.empty() ? Box{} : pieces.front().box;
  const std::int64_t elements = elements_of(sizes_of(box, tensor.shape));
  const std::string what = str(where, title(tensor), to_string(box), " of ", elements, " elements");
  std::int64_t next = 0;
  for (const Piece& piece : pieces) {
    if (piece.first != next) {
      throw CheckpointError(str(what, ": those from ", std::min(piece.first, next), " to ",
                                std::max(piece.first, next), " are ",
                                piece.first > next ? "missing" : "there twice"));
    }
    next += piece.count;
  }
  if (next != elements) throw CheckpointError(str(what, ": there are pieces for ", next));
}

// Throws: CheckpointError unless the boxes are the tensor, each element once.
void check_boxes(const Tensor& tensor, const std::vector<Box>& boxes, const std::string& where) {
  const std::string what = str(where, title(tensor), ", ", type_and_shape(tensor));
  const std::size_t cut = cut_dimensions(boxes, tensor.shape);
  if (cut > kCutDimensionsMax) {
    throw CheckpointError(
        str(what, " is cut along ", cut, " dimensions, which may be at most ", kCutDimensionsMax));
  }
  if (tensor.elements() == 0) return;
  const auto wrong = first_miscount(boxes, tensor.shape);
  if (!wrong) return;
  throw CheckpointError(str(what, ": its element [", join(wrong->index, ", "), "] is ",
                            wrong->times == 0 ? "missing" : str("there ", wrong->times, " times")));
}

// Sorts the pieces.  Throws: CheckpointError unless they are the tensor, each element once.
void settle(Tensor& tensor, const std::string& where) {
  std::ranges::sort(tensor.pieces, {}, [](const Piece& p) { return std::tie(p.box, p.first); });
  const std::span<const Piece> all(tensor.pieces);
  std::vector<Box> boxes;
  for (auto begin = all.begin(); begin != all.end();) {
    const auto end =
        std::find_if(begin, all.end(), [&](const Piece& piece) { return piece.box != begin->box; });
    check_runs(tensor, {begin, end}, where);
    boxes.push_back(begin->box);
    begin = end;
  }
  if (boxes.empty()) check_runs(tensor, {}, where);
  if (boxes.size() > 1 || (boxes.size() == 1 && !boxes.front().empty())) {
    check_boxes(tensor, boxes, where);
  }
}

// Throws: CheckpointError unless each shard's pieces follow each other and fill it.
void check_shards(const Manifest& manifest, const std::string& where) {
  std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> spans(manifest.shards.size());
  for (const Tensor& tensor : manifest.tensors) {
    for (const Piece& piece : tensor.pieces) {
      spans[piece.shard].emplace_back(
          piece.offset, static_cast<std::uint64_t>(piece.count) * bytes_of(tensor.type));
    }
  }
  for (std::size_t s = 0; s < spans.size(); ++s) {
    std::ranges::sort(spans[s]);
    std::uint64_t end = manifest.shards[s].header_bytes;
    for (const auto& [offset, bytes] : spans[s]) {
      if (offset != end && bytes > 0) {
        throw CheckpointError(str(where, "a piece in shard ", s, " begins at byte ", offset,
                                  ", the one before it ends at ", end));
      }
      end += bytes;
    }
    if (end != manifest.shards[s].bytes) {
      throw CheckpointError(str(where, "the pieces in shard ", s, " do not fill its ",
                                manifest.shards[s].bytes, " bytes one behind the other"));
    }
  }
}

void check_different(const std::vector<Tensor>& sorted, const std::string& where) {
  const auto same = [](const Tensor& a, const Tensor& b) { return key_of(a) == key_of(b); };
  const auto twice = std::ranges::adjacent_find(sorted, same);
  if (twice != sorted.end()) throw CheckpointError(str(where, title(*twice), " is there twice"));
}

// The offset at which the digest's member begins, behind what it is the digest of.
std::size_t end_of_body(const std::string& text, const std::string& path) {
  const std::size_t tail = kDigestKey.size() + kDigestDigits + kDigestEnd.size();
  const bool is_there =
      text.size() > tail && text.ends_with(kDigestEnd) &&
      std::string_view(text).substr(text.size() - tail, kDigestKey.size()) == kDigestKey;
  if (!is_there) {
    throw CheckpointError(str(quoted_path(path),
                              " does not end with its digest: it is cut short, damaged, or no ",
                              kFormat));
  }
  return text.size() - tail;
}

}  // namespace

std::string type_and_shape(const Tensor& tensor) {
  return str(name_of(tensor.type), "[", join(tensor.shape, ", "), "]");
}

std::int64_t Tensor::elements() const { return elements_of(shape); }

const Tensor* Manifest::find(std::string_view name, std::string_view state) const {
  const auto key = std::tuple(name, state);
  const auto key_of_tensor = [](const Tensor& tensor) {
    return std::tuple(std::string_view(tensor.name), std::string_view(tensor.state));
  };
  const auto found = std::ranges::lower_bound(tensors, key, {}, key_of_tensor);
  return found != tensors.end() && key_of_tensor(*found) == key ? &*found : nullptr;
}

std::uint64_t Manifest::bytes() const {
  std::uint64_t bytes = 0;
  for (const Shard& shard : shards) bytes += shard.bytes;
  return bytes;
}

std::string shard_file(std::size_t index, std::size_t count) {
  const auto padded = [](std::size_t number) {
    constexpr std::size_t kDigits = 5;
    const std::string digits = std::to_string(number);
    return std::string(digits.size() < kDigits ? kDigits - digits.size() : 0, '0') + digits;
  };
  return str(kShardPrefix, padded(index), "-of-", padded(count), kShardSuffix);
}

bool is_of_checkpoint(std::string_view file) {
  return file == kManifestName ||
         (file.starts_with(kShardPrefix) && file.find(kShardSuffix) != std::string_view::npos);
}

Manifest merge(const std::vector<Manifest>& of_shards) {
  Manifest all;
  std::map<std::pair<std::string, std::string>, Tensor> tensors;
  for (std::size_t s = 0; s < of_shards.size(); ++s) {
    const Manifest& one = of_shards[s];
    if (s == 0) {
      all.step = one.step;
      all.facts = one.facts;
    }
    for (const auto& [key, value] : one.values) {
      if (all.values.try_emplace(key, value).first->second == value) continue;
      throw CheckpointError(str("two shards have different values of ", in_quotes(key)));
    }
    all.shards.insert(all.shards.end(), one.shards.begin(), one.shards.end());
    for (const Tensor& tensor : one.tensors) {
      const auto [known, is_new] = tensors.try_emplace({tensor.name, tensor.state}, tensor);
      Tensor& whole = known->second;
      if (is_new) whole.pieces.clear();
      if (whole.type != tensor.type || whole.shape != tensor.shape) {
        throw CheckpointError(str(title(tensor), " is ", type_and_shape(whole), " in one shard, ",
                                  type_and_shape(tensor), " in another"));
      }
      for (Piece piece : tensor.pieces) {
        piece.shard = s;
        whole.pieces.push_back(piece);
      }
    }
  }
  for (auto& [key, tensor] : tensors) {
    settle(tensor, "");
    all.tensors.push_back(std::move(tensor));
  }
  check_shards(all, "");
  return all;
}

std::string to_text(const Manifest& manifest) {
  std::string text =
      str("{\n  \"format\": \"", kFormat, "\",\n  \"version\": ", kFormatVersion,
          ",\n  \"step\": ", manifest.step, ",\n  \"facts\": ", to_text(manifest.facts),
          ",\n  \"values\": ", to_text(manifest.values), ",\n  \"chunk_bytes\": ", kChunkBytes,
          ",\n  \"shards\": ", list_of(manifest.shards),
          ",\n  \"tensors\": ", list_of(manifest.tensors), ",");
  const std::string digest = to_string(digest_of(text));
  return str(text, kDigestKey, digest, kDigestEnd);
}

Manifest parse_fragment(const std::string& text, const std::string& path) {
  const std::size_t body = end_of_body(text, path);
  const auto said =
      parse_digest(std::string_view(text).substr(body + kDigestKey.size(), kDigestDigits));
  const Digest is = digest_of(std::string_view(text).substr(0, body));
  if (!said || !(is == *said)) {
    throw CheckpointError(str(quoted_path(path), " is damaged: it was written with the digest ",
                              text.substr(body + kDigestKey.size(), kDigestDigits), ", it has ",
                              to_string(is)));
  }
  json::Value root;
  try {
    auto source = std::make_shared<json::Source>(json::Source{.name = path, .text = text});
    root = json::parse(std::move(source), kManifestBytesMax);
  } catch (const ParseError& error) {
    throw CheckpointError(error.message(), error.notes());
  }
  if (text_of(member(root, "format"), "format") != kFormat) {
    refuse(member(root, "format"), str("format must be \"", kFormat, "\""));
  }
  const std::int64_t version = natural(member(root, "version"), "version", std::int64_t{1} << 31);
  if (version < 1 || version > kFormatVersion) {
    throw CheckpointError(str(quoted_path(path), " is of version ", version,
                              " of the format, this penstock reads versions 1 to ",
                              kFormatVersion));
  }
  if (natural(member(root, "chunk_bytes"), "chunk_bytes", kNumberMax) != kChunkBytes) {
    refuse(member(root, "chunk_bytes"), str("chunk_bytes must be ", kChunkBytes));
  }
  Manifest manifest{.step = natural(member(root, "step"), "step", kNumberMax),
                    .facts = parse_texts(member(root, "facts"), "facts"),
                    .values = parse_texts(member(root, "values"), "values")};
  for (const json::Value& each : list_of(member(root, "shards"), "shards")) {
    manifest.shards.push_back(parse_shard(each));
  }
  if (manifest.shards.size() > kShardsMax) refuse(member(root, "shards"), "too many shards");
  for (const json::Value& each : list_of(member(root, "tensors"), "tensors")) {
    manifest.tensors.push_back(parse_tensor(each, manifest.shards, version));
  }
  return manifest;
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  Manifest manifest = parse_fragment(text, path);
  const std::string where = str(quoted_path(path), ": ");
  std::ranges::sort(manifest.tensors,
                    [](const Tensor& a, const Tensor& b) { return key_of(a) < key_of(b); });
  check_different(manifest.tensors, where);
  for (Tensor& tensor : manifest.tensors) settle(tensor, where);
  check_shards(manifest, where);
  return manifest;
}

}  // namespace penstock::checkpoint
