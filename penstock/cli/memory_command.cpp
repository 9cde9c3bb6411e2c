#include "penstock/cli/memory_command.h"

#include "penstock/core/text.h"

namespace penstock::cli {

void declare_memory(CLI::App& app, MemoryCommand& command) {
  declare_run(app, command.run, "zero_optimization.stage=2");
  CLI::Option* json = app.add_flag("--json", command.json, "print the result as JSON");
  app.add_flag("--parameters", command.parameters,
               "print which replica holds and updates which parameter")
      ->excludes(json);
  app.add_flag("--measure", command.measure,
               "run a layer of each kind at full size, instead of by its shapes alone");
  CLI::Option* const layers =
      app.add_option("--layers", command.layers,
                     "write what single layers take to FILE, for penstock plan, and print nothing")
          ->type_name("FILE");
  app.add_option("--microbatch-sizes", command.microbatch_sizes,
                 "samples in a microbatch, for each of which --layers measures (default: the\n"
                 "configuration's)")
      ->type_name("N,N")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->needs(layers);
  app.add_option("--tensor", command.tensor,
                 "numbers of ranks that share each layer, for each of which --layers writes, as\n"
                 "far as the layers allow it (default: 1)")
      ->type_name("N,N")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 10))
      ->needs(layers);
  CLI::Option* const context =
      app.add_option("--context", command.context,
                     "numbers of ranks that share the tokens of a sample, for each of which\n"
                     "--layers writes, for plans: no run can have them yet (default: 1)")
          ->type_name("N,N")
          ->delimiter(',')
          ->check(CLI::Range(1, 1 << 10))
          ->needs(layers);
  app.add_option("--context-by", command.context_by,
                 "how keys and values reach these ranks: gather or ring")
      ->type_name("WAY")
      ->capture_default_str()
      ->check(CLI::IsMember({"gather", "ring"}))
      ->needs(context);
  app.footer(
      "Nothing is trained: one layer of each kind runs, by its shapes; the rest is told from the\n"
      "plan.\n"
      "Examples:\n"
      "  penstock memory examples/gpt.json\n"
      "  penstock memory examples/gpt.json --nproc 4 --set zero_optimization.stage=2\n"
      "  penstock memory examples/gpt.json --parameters --set zero_optimization.stage=3\n"
      "  penstock memory examples/gpt.json --layers layers.json --microbatch-sizes 1,2,4");
}

}  // namespace penstock::cli
