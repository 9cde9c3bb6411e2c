// Boxes of a folder's tensors are read as the tensors have them.
#include "penstock/runtime/weights/tensor_files.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "penstock/runtime/weights/safetensors.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace penstock::weights {
namespace {

using testing_support::same_bits;
using testing_support::TemporaryFolder;

TEST(TensorFiles, GiveBoxesAsTheTypeThatIsAskedFor) {
  const TemporaryFolder folder;
  const at::Tensor whole = at::rand({7, 5, 4});
  write_safetensors(folder.file("model.safetensors"),
                    {{"first", at::rand({3})}, {"f32", whole}, {"bf16", whole.to(at::kBFloat16)}});
  const TensorFiles files(folder.path());
  for (const Box& box : {Box{}, Box{{2, 3}, {0, 5}, {0, 4}}, Box{{0, 7}, {1, 2}, {0, 4}},
                         Box{{0, 7}, {0, 5}, {3, 1}}, Box{{6, 1}, {4, 1}, {1, 2}}}) {
    at::Tensor expected = whole;
    for (std::size_t d = 0; d < box.size(); ++d) {
      expected = expected.narrow(static_cast<std::int64_t>(d), box[d].first, box[d].count);
    }
    at::Tensor read = at::empty(expected.sizes());
    files.read("f32", read, box);
    EXPECT_TRUE(same_bits(read, expected)) << to_string(box);
    files.read("bf16", read, box);
    EXPECT_TRUE(same_bits(read, expected.to(at::kBFloat16).to(at::kFloat))) << to_string(box);
  }
}

}  // namespace
}  // namespace penstock::weights
