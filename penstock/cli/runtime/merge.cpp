#include "penstock/cli/runtime/merge.h"

#include <unistd.h>

#include "penstock/core/output.h"
#include "penstock/core/progress_lines.h"
#include "penstock/core/text.h"
#include "penstock/hugging_face/folder.h"
#include "penstock/runtime/hugging_face/adapter_folder.h"
#include "penstock/runtime/run/model_card.h"

namespace penstock::cli {

int run_merge(const MergeCommand& command) {
  const hugging_face::ModelFolder model(command.model);
  ProgressLines lines;
  const std::int64_t linears = hugging_face::merge_adapters(
      command.adapters, model, command.to, run::merged_card(model, command.adapters, command.to),
      [&](const std::string& what) { lines.at("merge: " + what); });
  Output(STDOUT_FILENO)
      .write(str("merged: the adapters of ", linears, " linears, into ", command.to, "\n"));
  return 0;
}

}  // namespace penstock::cli
