#include <memory>

#include "penstock/cli/emulate_command.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/plan/devices/device_model.h"

namespace penstock::cli {

// The run's own code goes through a step: the program that has it does it.
Command declare_emulate_command(CLI::App& app, const Words& own) {
  const auto command = std::make_shared<EmulateCommand>();
  declare_emulate(app, *command);
  return [command, &own]() -> int {
    devices::device_model(command->device);  // An error of its name comes at once.
    become(own);
  };
}

}  // namespace penstock::cli
