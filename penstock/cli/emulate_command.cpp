#include "penstock/cli/emulate_command.h"

#include "penstock/core/text.h"
#include "penstock/plan/devices/device_model.h"

namespace penstock::cli {

void declare_emulate(CLI::App& app, EmulateCommand& command) {
  declare_run(app, command.run, "zero_optimization.stage=2");
  std::vector<std::string> names;
  for (const devices::DeviceModel& each : devices::device_models()) names.push_back(each.name);
  app.add_option("--device", command.device,
                 str("the device of each rank: ", join(names, ", "),
                     ";\nor a .json file with figures of one (default: h100-sxm)"))
      ->type_name("NAME");
  app.add_option(
         "--hosts", command.hosts,
         "2x8: two hosts with eight devices each (default: as many as the ranks need, with\n"
         "as many devices as such hosts have)")
      ->type_name("HxD")
      ->delimiter('x')
      ->expected(2)
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--output", command.output,
                 "write what each rank does in one more step into this folder, for penstock report")
      ->type_name("FOLDER");
  app.add_flag("--json", command.json, "print the result as JSON");
  app.footer(
      "The run's own code goes through a step on devices without memory, and a clock is kept.\n"
      "Seconds are estimates; counts and bytes are those of a real run.\n"
      "Examples:\n"
      "  penstock emulate examples/gpt.json --nproc 4\n"
      "  penstock emulate llama.json --device h200 --set zero_optimization.stage=1\n"
      "  penstock emulate llama.json --output emulated && penstock report emulated");
}

}  // namespace penstock::cli
