#include "penstock/runtime/emulate/from_config.h"

#include <ATen/ops/randint.h>

#include <utility>

#include "penstock/plan/config/resolve.h"
#include "penstock/runtime/run/from_config.h"

namespace penstock::emulate {

Step step_of(const config::Config& config, std::int64_t ranks) {
  const mesh::Shape mesh = config::resolve_mesh(config.mesh, ranks);
  const config::Batch batch = config::resolve_batch(config.batch, mesh);
  run::Model model = run::model_without_weights(config);
  const at::Tensor text = at::randint(
      model.vocabulary,
      {batch.micro_batch_size * batch.microbatches, config.model.sequence_length + 1}, at::kLong);
  return {.options = run::options_of(config, mesh, batch),
          .layers = std::move(model.layers),
          .loss = std::move(model.loss),
          .inputs = text.slice(1, 0, -1).contiguous(),
          .targets = text.slice(1, 1).contiguous()};
}

}  // namespace penstock::emulate
