#include "penstock/runtime/train/state_piece.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "penstock/files/checkpoint/manifest.h"

namespace penstock::train {

StatePiece weight_of(std::string name, at::IntArrayRef sizes, const partition::Cut& cut,
                     const at::Tensor& values) {
  const Sizes shape = partition::shape_of_whole(sizes.vec(), cut);
  return {.name = std::move(name),
          .state = std::string(checkpoint::kWeight),
          .shape = shape,
          .box = partition::box_of(cut, shape),
          .values = values.detach()};
}

void share_out(std::vector<StatePiece>& pieces, std::int32_t replicas, std::int32_t here) {
  std::vector<std::size_t> bytes(static_cast<std::size_t>(replicas), 0);
  std::set<std::pair<std::string, std::string>> seen;
  for (StatePiece& piece : pieces) {
    if (!piece.is_saved_here) continue;
    piece.is_saved_here = seen.emplace(piece.name, piece.state).second;
    if (!piece.is_saved_here || piece.is_slice) continue;
    const auto least = std::ranges::min_element(bytes);
    *least += piece.values.nbytes();
    piece.is_saved_here = least - bytes.begin() == here;
  }
}

}  // namespace penstock::train
