#include "penstock/runtime/nn/decoder_bits.h"

#include <string>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/block_sums.h"

namespace penstock::nn {
namespace {

// What ranks cannot share so that their number changes no bit, each as a sentence.
std::vector<std::string> what_changes_bits(const DecoderOptions& options, std::int64_t ranks) {
  std::vector<std::string> all;
  if (options.kv_heads % ranks != 0) {
    all.push_back(penstock::str("of ", options.kv_heads,
                                " heads of keys and values each rank needs as many, and one"));
  }
  const auto check = [&](std::int64_t size, const char* what) {
    if (can_share_width(ranks, size)) return;
    all.push_back(penstock::str("of ", size, " ", what,
                                " each rank needs as many, and a multiple of ", kWidthOfBits));
  };
  check(options.heads * options.head_dim, "features of queries");
  check(options.kv_heads * options.head_dim, "features of keys");
  check(options.intermediate, "features of the feed-forward part");
  check(options.vocabulary, "tokens of the vocabulary");
  if (options.adapter) all.push_back("adapters are not added in blocks");
  if (options.norm != NormKind::Rms || options.mlp != MlpKind::SwiGlu) {
    all.push_back("only RMS norms and SwiGLU are known to keep them");
  }
  if (options.fuses_projections) all.push_back("fused projections are not added in blocks");
  if (options.normalizes_heads_together)
    all.push_back("squares of all heads are not added in blocks");
  if (options.score_cap) all.push_back("attention with a cap on scores is not known to keep them");
  return all;
}

}  // namespace

void check_bits(const DecoderOptions& options, const Making& making) {
  const std::int64_t ranks = making.share.of;
  if (!making.blocks || ranks == 1) return;
  const std::vector<std::string> wrong = what_changes_bits(options, ranks);
  if (wrong.empty()) return;
  std::vector<std::int64_t> that_work = {1};
  for (std::int64_t each = 2; each <= exchange::kBlocks; each *= 2) {
    if (what_changes_bits(options, each).empty()) that_work.push_back(each);
  }
  throw ConfigError(penstock::str("mesh.tensor = ", ranks,
                                  " with numerics.invariant: bits would depend on the number of "
                                  "ranks: ",
                                  join(wrong, "; ")),
                    {penstock::str("sizes that work: ", join(that_work, ", "))});
}

}  // namespace penstock::nn
