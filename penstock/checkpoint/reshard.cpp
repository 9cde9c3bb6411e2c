#include "penstock/checkpoint/reshard.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "penstock/checkpoint/checkpoint_directory.h"
#include "penstock/checkpoint/new_folder.h"
#include "penstock/core/check.h"
#include "penstock/core/error.h"

namespace penstock::checkpoint {
namespace {

std::uint64_t bytes_of_tensors(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : manifest.tensors) {
    bytes += static_cast<std::uint64_t>(tensor.elements()) * bytes_of(tensor.type);
  }
  return bytes;
}

}  // namespace

std::vector<std::vector<PieceToSave>> even_pieces(const Manifest& manifest, std::size_t shards) {
  PENSTOCK_CHECK(shards > 0, "no shards");
  std::vector<std::vector<PieceToSave>> all(shards);
  std::uint64_t left = bytes_of_tensors(manifest);
  std::size_t shard = 0;
  // What the rest of the shards have to take is shared out anew when a shard is full.
  const auto share = [&] { return (left + (shards - shard) - 1) / (shards - shard); };
  std::uint64_t room = share();
  for (const Tensor& tensor : manifest.tensors) {
    const std::uint64_t size = bytes_of(tensor.type);
    PieceToSave piece{
        .name = tensor.name, .state = tensor.state, .type = tensor.type, .shape = tensor.shape};
    if (tensor.elements() == 0) all[shard].push_back(piece);
    for (std::int64_t first = 0; first < tensor.elements(); first += piece.count) {
      if (room < size && shard + 1 < shards) {
        ++shard;
        room = share();
      }
      const auto fits = static_cast<std::int64_t>(std::max<std::uint64_t>(room / size, 1));
      piece.first = first;
      piece.count = std::min(fits, tensor.elements() - first);
      const std::uint64_t bytes = static_cast<std::uint64_t>(piece.count) * size;
      left -= bytes;
      room -= std::min(room, bytes);
      all[shard].push_back(piece);
    }
  }
  return all;
}

Manifest reshard(SavedCheckpoint& from, const std::string& to, std::size_t shards,
                 const std::function<void(std::uint64_t)>& advanced) {
  const Manifest& was = from.manifest();
  const std::filesystem::path path = path_of_new(to, "a checkpoint");
  const std::string name = path.filename().string();
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  const std::string objection = objection_to_name(name);
  if (!objection.empty()) throw ConfigError(objection);
  FoldersAbove above(path.string());
  CheckpointDirectory directory(parent);
  const std::string folder =
      directory.begin(name, was.bytes(), CheckpointDirectory::Leftovers::OfThisName);
  const BytesOf read = [&](const PieceToSave& piece,
                           const std::function<void(std::string_view)>& take) {
    from.read_portions(*was.find(piece.name, piece.state), piece.first, piece.count,
                       [&](std::string_view bytes) {
                         take(bytes);
                         if (advanced) advanced(bytes.size());
                       });
  };
  try {
    std::vector<Manifest> of_shards;
    for (std::vector<PieceToSave>& pieces : even_pieces(was, shards)) {
      of_shards.push_back(write_shard(folder, of_shards.size(), shards, std::move(pieces), read));
    }
    of_shards.front().step = was.step;
    of_shards.front().facts = was.facts;
    of_shards.front().values = was.values;
    Manifest made = merge(of_shards);
    directory.commit(name, made);
    above.keep();
    return made;
  } catch (...) {
    directory.abandon(name);
    throw;
  }
}

}  // namespace penstock::checkpoint
