#include "penstock/cli/runtime/verify_run.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/read.h"
#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/program_of_replicas.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/lower/device_proof.h"
#include "penstock/plan/lower/exchange_proof.h"
#include "penstock/plan/lower/places.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/runtime/run/from_config.h"
#include "penstock/runtime/train/device_messages.h"
#include "penstock/runtime/train/layer_sizes.h"
#include "penstock/runtime/train/shared_layers.h"

namespace penstock::cli {
namespace {

// Exchanges of a rank in a step, and those of overlapped pairs that wait beside the other pass.
struct RankExchanges {
  std::int64_t all = 0;
  std::int64_t beside_pass = 0;
};

// A run that is proved.
struct Proved {
  mesh::Shape mesh;
  verify::VerifiedSchedule schedule;
  partition::Partition partition;
  std::vector<nn::LayerSpec> layers;
  std::vector<lower::StageExchanges> stages;  // Empty: ranks share no layers.
  std::vector<RankExchanges> exchanges;       // Numbers by pipe rank; empty likewise.
  std::optional<lower::DeviceProof> devices;  // Whether messages from device to device can hang.
};

// The proof for devices takes a second for so many.
constexpr std::int64_t kRanksOnDevicesMax = 256;

std::vector<RankExchanges> exchanges_of_ranks(const verify::VerifiedSchedule& schedule,
                                              const std::vector<lower::StageExchanges>& stages) {
  const mesh::Shape pipe{.pipe = schedule.schedule().ranks()};
  const lower::MeshProgram program = lower::mesh_program(schedule, stages, mesh::make_mesh(pipe));
  std::vector<RankExchanges> ranks;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    ranks.push_back({.all = std::ranges::count(program.ranks[rank], lower::RankStep::Does::Exchange,
                                               &lower::RankStep::does),
                     .beside_pass = program.beside_pass[rank]});
  }
  return ranks;
}

Proved proved(const config::Config& config, const AskedRun& asked) {
  const mesh::Shape mesh = config::resolve_mesh(config.mesh, asked.ranks(config.mesh));
  const config::Batch batch = config::resolve_batch(config.batch, mesh);
  run::Model model = run::model_without_weights(config);
  const train::TrainerOptions options = run::options_of(config, mesh, batch);
  nn::check_model(model.layers);
  nn::count_parameters(model.layers);
  verify::VerifiedSchedule schedule = lower::training_program(train::program_of(options));
  config::check_programs(lower::programs_of(schedule), config);
  partition::Partition partition =
      train::partition_of(model.layers, schedule.schedule().stages, options.partition);
  std::vector<lower::StageExchanges> stages;
  std::vector<RankExchanges> exchanges;
  if (mesh[mesh::Axis::Tensor] > 1) {
    train::check_shared_layers(options, model.layers, model.loss);
    train::check_shares(model.layers, mesh[mesh::Axis::Tensor], train::blocks_of_layers(options));
    stages = train::exchanges_of_stages(model.layers, model.loss, partition, options.checkpointing,
                                        options.sums);
    train::prove_exchanges(schedule, stages, mesh);
    exchanges = exchanges_of_ranks(schedule, stages);
  }
  std::optional<lower::DeviceProof> devices;
  if (mesh.size() > 1 && mesh.size() <= kRanksOnDevicesMax && stages.empty() &&
      schedule.schedule().replicas == 1) {
    devices = train::device_proof(options, model.layers, partition, schedule);
    if (!devices->objection.empty() && config.launch.device == config::Device::Cuda) {
      throw ScheduleError(str("on devices, ranks wait for ever: ", devices->objection));
    }
  }
  return {mesh,
          std::move(schedule),
          std::move(partition),
          std::move(model.layers),
          std::move(stages),
          std::move(exchanges),
          std::move(devices)};
}

std::string layers_text(const Proved& run, StageId stage) {
  const auto name = [&](std::int64_t layer) {
    return run.layers[static_cast<std::size_t>(layer)].meta.name;
  };
  const std::int64_t first = run.partition.first_layer(stage);
  const std::int64_t last = run.partition.end_layer(stage) - 1;
  return first == last ? name(first) : str(name(first), " .. ", name(last));
}

// Names of the exchanges that have something computed beside them.
lower::PassExchanges beside(const lower::PassExchanges& pass) {
  lower::PassExchanges some;
  std::ranges::copy_if(pass, std::back_inserter(some), [](const lower::PassExchange& each) {
    return each.beside != lower::Beside::Nothing;
  });
  return some;
}

std::string devices_text(const lower::DeviceProof& proof) {
  constexpr lower::Multiprocessors kDevice;
  if (!proof.objection.empty()) {
    return str("on devices, ranks would wait for ever: ", proof.objection, "\n");
  }
  return str("on devices: messages hold at most ", proof.held_max, " of ", kDevice.of_device,
             " multiprocessors, ",
             proof.is_of_every_order ? "and no order of kernels hangs"
                                     : "and the worst order known ends; others are not proved",
             "\n");
}

std::string as_text(const Proved& run, const std::string& config) {
  std::string text = str(config, ": verified, ", schedule::title(run.schedule.schedule()), " on ",
                         mesh::to_string(run.mesh), "\npeak activations by pipe rank: ",
                         join(run.schedule.facts().peak_activations, ", "), "\n");
  for (StageId stage(0); stage.value < run.partition.stages(); ++stage.value) {
    text += str("stage ", stage, ": ", layers_text(run, stage));
    if (!run.stages.empty()) {
      const lower::StageExchanges& each = run.stages[stage.index()];
      text += str(", ", counted(std::ssize(each.forward), "exchange"), " in a forward, ",
                  std::ssize(each.backward), " in a backward, ", std::ssize(beside(each.backward)),
                  " of them beside computation");
    }
    text += "\n";
  }
  const bool has_pairs =
      std::ranges::any_of(run.exchanges, [](const auto& each) { return each.beside_pass > 0; });
  if (has_pairs) {
    std::vector<std::string> ranks;
    for (const auto& [all, beside_pass] : run.exchanges) {
      ranks.push_back(str(beside_pass, " of ", all));
    }
    text += str("exchanges beside the other pass of an overlapped pair, by pipe rank: ",
                join(ranks, ", "), "\n");
  }
  if (run.devices) text += devices_text(*run.devices);
  if (run.mesh.size() > kRanksOnDevicesMax) {
    text += str("on devices: more than ", kRanksOnDevicesMax, " ranks are not proved\n");
  }
  return text;
}

std::string list_of(const lower::PassExchanges& pass) {
  std::vector<std::string> quoted;
  for (const lower::PassExchange& each : pass) quoted.push_back(json_quote(each.name));
  return str("[", join(quoted, ", "), "]");
}

std::string as_json(const Proved& run) {
  std::vector<std::string> stages;
  for (StageId stage(0); stage.value < run.partition.stages(); ++stage.value) {
    const lower::StageExchanges none;
    const lower::StageExchanges& each = run.stages.empty() ? none : run.stages[stage.index()];
    stages.push_back(str("{\"first_layer\": ", run.partition.first_layer(stage),
                         ", \"end_layer\": ", run.partition.end_layer(stage), ",\n   \"forward\": ",
                         list_of(each.forward), ",\n   \"backward\": ", list_of(each.backward),
                         ",\n   \"beside_computation\": ", list_of(beside(each.backward)), "}"));
  }
  std::vector<std::int64_t> all, beside_pass;
  for (const RankExchanges& each : run.exchanges) {
    all.push_back(each.all);
    beside_pass.push_back(each.beside_pass);
  }
  return str("{\"ok\": true, ", mesh::json_members(run.mesh), ", \"peak_activations\": [",
             join(run.schedule.facts().peak_activations, ", "), "], \"exchanges\": [",
             join(all, ", "), "], \"beside_other_pass\": [", join(beside_pass, ", "),
             "], \"stages\": [\n  ", join(stages, ",\n  "), "]}\n");
}

}  // namespace

void declare_verify_run(CLI::App& app, VerifyRun& command) {
  declare_run(app, command.run, "mesh.tensor=2");
  app.add_flag("--json", command.json, "print the result as JSON, with the name of each exchange");
}

int run_verify_run(const VerifyRun& command) {
  const config::Config config =
      config::read_config(command.run.config, command.run.overrides).config;
  try {
    const Proved run = proved(config, command.run);
    write_result(command.json ? as_json(run) : as_text(run, command.run.config));
  } catch (const Error& error) {
    throw Error(str(command.run.config, ": ", error.message()), error.notes(), error.exit_code());
  }
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace penstock::cli
