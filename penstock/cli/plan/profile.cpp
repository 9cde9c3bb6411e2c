#include <memory>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/profile_command.h"

namespace penstock::cli {

// Layers are tensors: the program that has them does it.
Command declare_profile_command(CLI::App& app, const Words& own) {
  const auto command = std::make_shared<ProfileCommand>();
  declare_profile(app, *command);
  return [command, &own]() -> int {
    check(*command);
    become(own);
  };
}

}  // namespace penstock::cli
