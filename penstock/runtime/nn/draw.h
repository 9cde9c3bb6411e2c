// Random numbers of a layer's passes: the same in every layout, and again when a pass is repeated.
//
// They come from generators of their own for each seed, step, microbatch and layer, and depend on
// nothing that a rank did before.  Stage opens a DrawScope around each layer that it runs, around
// the loss and around a backward.  There nn::Dropout draws from generator(), as any layer may; and
// torch's operators that are given no generator, or torch's default one, draw from the scope's
// (torch_draws.h).  So torch's default generators decide on nothing there, and are not moved.
// Knows no stages.
// Thread safety: a scope belongs to its thread; threads that a layer starts are outside of it.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::nn {

// The passes of a microbatch that may draw: they draw different numbers.
enum class Pass : std::uint8_t { Forward, Backward, Weights };

struct DrawPlace {
  std::int64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t microbatch = 0;  // Number in the step, counted over all replicas.
  std::int64_t layer = 0;       // Number in the model; the number of layers stands for the loss.
  std::int64_t piece = 0;       // Piece of the layer, where ranks share it.
  std::int64_t evaluation = 0;  // Number of the evaluation behind that step, from 1; 0: training.
  Pass pass = Pass::Forward;

  std::uint64_t key() const;
};

// Generators that a layer gives to operators itself, as they were before the first of these.
class OwnGenerators {
 public:
  void note(at::Generator generator);  // Unless it is there.
  bool empty() const { return noted_.empty(); }
  // Gives each the state that is noted, and notes the one that it had.
  void exchange();

 private:
  struct Noted {
    at::Generator generator;
    at::Tensor state;
  };
  std::vector<Noted> noted_;
};

// The source of the numbers that torch's operators draw.
enum class TorchDraws : std::uint8_t { ByPlace, FromDefaultGenerators };

class DrawScope {
 public:
  // `own`, if any, notes the generators that are drawn from besides the scope's.
  explicit DrawScope(const DrawPlace& place, OwnGenerators* own = nullptr,
                     TorchDraws torchs = TorchDraws::ByPlace);
  ~DrawScope();
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

  // The innermost one of this thread; null: there is none.
  static DrawScope* current();
  // Called by whoever changes between passes that run on one thread by turns (execute/braid.h).
  static void set_current(DrawScope* scope);

  const DrawPlace& place() const { return place_; }
  TorchDraws torchs() const { return torchs_; }
  OwnGenerators* own() const { return own_; }
  // Made when something is drawn on that device.
  at::Generator& generator(c10::Device device);

 private:
  struct OfDevice {
    c10::Device device;
    at::Generator generator;
  };

  DrawPlace place_;
  OwnGenerators* own_;
  TorchDraws torchs_;
  std::vector<OfDevice> generators_;
  DrawScope* outer_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> operators_;
};

// Lets a rank that runs all pieces of a layer draw, while it lives, the numbers that the piece
// draws where ranks share the layer.  Outside of every scope it does nothing.
class PieceScope {
 public:
  explicit PieceScope(std::int64_t piece);

 private:
  std::optional<DrawScope> scope_;
};

// The generator of the innermost scope, for host memory.
// Throws: Error outside of every scope.
at::Generator& generator();
// The place of the layer that is running.  REQUIRES: a scope.
const DrawPlace& draw_place();

}  // namespace penstock::nn
