// The same checkpoint in another number of shards.
//
// `penstock checkpoint reshard` makes it, for storage that wants fewer or larger files.  No run
// needs it: any layout reads any shards.  Knows no layout.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/checkpoint/shard.h"

namespace penstock::checkpoint {

// The pieces of each of `shards` shards, whose bytes are as even as whole elements allow: tensors
// in the manifest's order, cut where a shard is full.  Pieces have no bytes here.
// REQUIRES: shards > 0.
std::vector<std::vector<PieceToSave>> even_pieces(const Manifest& manifest, std::size_t shards);

// Makes the checkpoint `to`: the step, facts, values and tensors of `from`, bit for bit, in
// `shards` shards.  It is there whole or not at all.  `advanced` is called after each portion that
// is read, with its bytes.  Returns: its manifest.
// Throws: ConfigError where something is at `to` already, unless it is an empty folder;
// CheckpointError as SavedCheckpoint::read(), as CheckpointDirectory, and with the path and the
// system's reason.
Manifest reshard(SavedCheckpoint& from, const std::string& to, std::size_t shards,
                 const std::function<void(std::uint64_t)>& advanced = {});

}  // namespace penstock::checkpoint
