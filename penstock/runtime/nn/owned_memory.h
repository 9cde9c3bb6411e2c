// Knows which layer has which memory, among all ranks of this process.
//
// Ranks that are threads call the same functions that make layers.  Where two calls return one
// tensor, one that the function captures for instance, two ranks or two layers would train it at
// once.  So a rank claims what each of its layers has been made of; a second claim of it is an
// error.  Seen are modules, parameters, buffers and the storages that these are in: a tensor that
// is a plain member of a module is not.  Knows no ranks but by their names.
// Thread safety: claims of several threads take turns.
#pragma once
#include <string>

#include "penstock/nn/layer.h"

namespace penstock::nn {

class OwnedMemory {
 public:
  // "rank 1"
  explicit OwnedMemory(std::string owner) : owner_(std::move(owner)) {}
  // Gives up all claims.  REQUIRES: the layers have ended.
  ~OwnedMemory();
  OwnedMemory(const OwnedMemory&) = delete;
  OwnedMemory& operator=(const OwnedMemory&) = delete;

  // Claims the memory of a layer that has just been made, under the name of its LayerSpec.  Called
  // once a layer.
  // Throws: ConfigError that names this layer and the one that has the memory, with their owners.
  void claim(const std::string& layer_name, Layer& layer);

 private:
  std::string owner_;
};

}  // namespace penstock::nn
