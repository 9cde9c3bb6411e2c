#include "penstock/cli/profile_command.h"

#include "penstock/core/error.h"

namespace penstock::cli {

void declare_profile(CLI::App& app, ProfileCommand& command) {
  declare_run(app, command.run, "train_micro_batch_size_per_gpu=4");
  app.add_option("--seconds", command.seconds, "how long each kind of layer is run")
      ->type_name("S")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--threads", command.threads,
                 "threads of a rank (default: OMP_NUM_THREADS, else the share that the launcher\n"
                 "gives it of this machine's cores)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16));
  app.add_flag("--by-layer", command.by_layer,
               "costs of single layers, for penstock plan, which makes the stages itself");
  CLI::Option* const ledger =
      app.add_flag("--ledger", command.ledger,
                   "run the configuration's ranks for some steps instead: where each rank's step\n"
                   "goes, in products, passes, page faults, waits");
  app.add_option("--steps", command.steps, "steps that --ledger counts")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000))
      ->needs(ledger);
  app.add_flag("--json", command.json, "the ledger as JSON")->needs(ledger);
  ledger->excludes(app.get_option("--by-layer"))->excludes(app.get_option("--seconds"));
  app.add_option("-o,--output", command.output, "write the costs to FILE.json")->type_name("FILE");
  app.add_option("--device", command.device,
                 "measure this machine instead, as ranks of it that compute at one time (--nproc,\n"
                 "default 2): write what emulate and plan take with --device to FILE.json")
      ->type_name("FILE")
      ->excludes(app.get_option("--output"))
      ->excludes(ledger)
      ->excludes(app.get_option("config"));
  ledger->excludes(app.get_option("--output"));
  app.get_option("config")->required(false);
  app.footer(
      "One process runs a microbatch through a layer of each kind, again and again, in turn.\n"
      "The costs are milliseconds, by stage of CONFIG's own layout, for simulate, search,\n"
      "schedule and plan, each with --costs FILE.  They have no messages and no gathers.\n"
      "Examples:\n"
      "  penstock profile gpt.json -o costs.json\n"
      "  penstock simulate zb_h1 --ranks 2 --microbatches 8 --costs costs.json\n"
      "  penstock profile gpt.json --by-layer -o layers.json\n"
      "  penstock plan gpt.json --world 8 --memory 16GB --costs layers.json\n"
      "  penstock profile gpt.json --ledger\n"
      "  penstock profile --device here.json");
}

void check(const ProfileCommand& command) {
  if (!command.device.empty()) {
    if (command.run.nproc == 1) {
      throw ConfigError(
          "profile: --nproc 1: links are between two ranks, so --device takes 2 or more");
    }
    if (!command.run.overrides.empty()) {
      throw ConfigError("profile: --set is for a CONFIG, and --device has none");
    }
  } else if (command.run.config.empty()) {
    throw ConfigError("profile: what is to be measured? CONFIG: the times of its layers",
                      {"--device FILE: this machine, for emulate and plan"});
  }
}

}  // namespace penstock::cli
