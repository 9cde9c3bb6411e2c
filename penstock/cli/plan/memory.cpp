#include <memory>

#include "penstock/cli/memory_command.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/runtime_program.h"

namespace penstock::cli {

// Layers are tensors: the program that has them does it.
Command declare_memory_command(CLI::App& app, const Words& own) {
  const auto command = std::make_shared<MemoryCommand>();
  declare_memory(app, *command);
  return [command, &own]() -> int { become(own); };
}

}  // namespace penstock::cli
