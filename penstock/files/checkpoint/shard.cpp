#include "penstock/files/checkpoint/shard.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/new_file.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

// Read for the digest, and again for the file, while the processor still has them.
constexpr std::size_t kBytesAtOnce = kChunkBytes;

Tensor whole_of(const PieceToSave& piece) {
  return {.name = piece.name, .state = piece.state, .type = piece.type, .shape = piece.shape};
}

Sizes sizes_of_box(const PieceToSave& piece) { return sizes_of(piece.box, piece.shape); }

// Whether it has all elements of its box.
bool is_box(const PieceToSave& piece) { return piece.count == elements_of(sizes_of_box(piece)); }

}  // namespace

std::string key_of(const PieceToSave& piece) {
  std::string name = piece.name;
  for (std::size_t at = 0; (at = name.find('/', at)) != std::string::npos; at += 2) {
    name.insert(at, 1, '/');
  }
  const std::string run =
      is_box(piece) ? "" : str("[", piece.first, ":", piece.first + piece.count, "]");
  const std::string slice = to_string(piece.box) + run;
  return piece.state == kWeight ? name + slice : str(name, "/", piece.state, slice);
}

Manifest write_shard(const std::string& folder, std::size_t index, std::size_t count,
                     std::vector<PieceToSave> pieces, const std::function<void()>& advanced) {
  const auto its_own = [](const PieceToSave& piece,
                          const std::function<void(std::string_view)>& take) { take(piece.bytes); };
  return write_shard(folder, index, count, std::move(pieces), its_own, advanced);
}

Manifest write_shard(const std::string& folder, std::size_t index, std::size_t count,
                     std::vector<PieceToSave> pieces, const BytesOf& bytes_in,
                     const std::function<void()>& advanced) {
  // Larger elements first: all are where a reader that maps the file may use them.
  std::ranges::stable_sort(pieces, std::ranges::greater(),
                           [](const PieceToSave& piece) { return bytes_of(piece.type); });
  SafetensorsHeader header{.metadata = {{"format", "pt"}}};
  std::uint64_t end = 0;
  for (const PieceToSave& piece : pieces) {
    const auto bytes = static_cast<std::uint64_t>(piece.count) * bytes_of(piece.type);
    const Sizes flat = {piece.count};
    header.entries.push_back({.name = key_of(piece),
                              .type = piece.type,
                              .shape = is_box(piece) ? sizes_of_box(piece) : flat,
                              .begin = end,
                              .end = end + bytes});
    end += bytes;
  }
  const std::string beginning = to_bytes(header);
  Manifest manifest;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Tensor tensor = whole_of(pieces[i]);
    tensor.pieces.push_back({.box = simplest(pieces[i].box, pieces[i].shape),
                             .first = pieces[i].first,
                             .count = pieces[i].count,
                             .offset = beginning.size() + header.entries[i].begin});
    manifest.tensors.push_back(std::move(tensor));
  }
  const std::string path = str(folder, "/", shard_file(index, count));
  ChunkDigests digests(kChunkBytes);
  try {
    NewFile file(path, path, advanced);
    file.expect(beginning.size() + end);
    const auto write = [&](std::string_view bytes) {
      for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), kBytesAtOnce))) {
        const std::string_view next = bytes.substr(0, kBytesAtOnce);
        digests.add(next);
        file.write(next);
      }
    };
    write(beginning);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      std::uint64_t missing = header.entries[i].end - header.entries[i].begin;
      bytes_in(pieces[i], [&](std::string_view bytes) {
        PENSTOCK_CHECK(bytes.size() <= missing, key_of(pieces[i]), " has more than its bytes");
        missing -= bytes.size();
        write(bytes);
      });
      PENSTOCK_CHECK(missing == 0, key_of(pieces[i]), " lacks ", missing, " bytes");
    }
    file.finish();
  } catch (const CheckpointError&) {
    throw;
  } catch (const Error& error) {
    throw CheckpointError(error.message(), error.notes());
  }
  manifest.shards.push_back({.bytes = beginning.size() + end,
                             .header_bytes = beginning.size(),
                             .chunks = digests.finish()});
  return manifest;
}

}  // namespace penstock::checkpoint
