// A checkpoint of version 1 of the format, which penstock 0.1 wrote, is read.
//
// version_1/ was written by three ranks of ZeRO 1: two layers of nn::mlp_layers(10, 2) with Adam,
// after two steps.  A slice of 0.net2.weight is on two of them.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/safetensors_header.h"

namespace penstock::checkpoint {
namespace {

const std::string kFolder = str(PENSTOCK_SOURCE_DIR, "/tests/checkpoint/version_1/step-00000002");

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The bytes of all pieces, by their keys in the shards.
std::map<std::string, std::string> pieces_in(std::size_t shards) {
  std::map<std::string, std::string> pieces;
  for (std::size_t s = 0; s < shards; ++s) {
    const std::string path = str(kFolder, "/", shard_file(s, shards));
    const std::string bytes = content_of(path);
    const ParsedHeader parsed = parse_header(bytes, bytes.size(), path);
    for (const HeaderEntry& each : parsed.header.entries) {
      pieces[each.name] = bytes.substr(parsed.bytes + each.begin, each.end - each.begin);
    }
  }
  return pieces;
}

TEST(VersionOne, IsReadAsItsShardsSay) {
  SavedCheckpoint saved(kFolder);
  EXPECT_EQ(saved.manifest().step, 2);
  saved.verify();
  const auto pieces = pieces_in(saved.manifest().shards.size());
  std::size_t cut = 0;
  for (const Tensor& tensor : saved.manifest().tensors) {
    const std::string key =
        tensor.state == kWeight ? tensor.name : str(tensor.name, "/", tensor.state);
    std::string expected;
    if (pieces.contains(key)) {
      expected = pieces.at(key);
    } else {
      ++cut;
      expected = pieces.at(key + "[0:64]") + pieces.at(key + "[64:100]");
    }
    std::string read(expected.size(), '\0');
    saved.read(tensor, 0, tensor.elements(), std::as_writable_bytes(std::span(read)));
    EXPECT_EQ(read, expected) << key;
  }
  EXPECT_EQ(cut, 3u);
}

}  // namespace
}  // namespace penstock::checkpoint
