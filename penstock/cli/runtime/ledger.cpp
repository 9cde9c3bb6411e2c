#include "penstock/cli/runtime/ledger.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <thread>
#include <vector>

#include "penstock/cli/formatted.h"
#include "penstock/cli/text_table.h"
#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/program_output.h"
#include "penstock/core/progress_lines.h"
#include "penstock/core/text.h"
#include "penstock/core/work_folder.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/runtime/offload/kept_memory.h"
#include "penstock/runtime/run/from_config.h"
#include "penstock/runtime/run/step_ledger.h"
#include "penstock/train/trainer.h"

namespace penstock::cli {
namespace {

using probe::Operator;
using probe::OperatorCost;
using probe::OperatorKind;
using run::at_best;
using run::LedgerRow;
using run::StepLedger;

constexpr double kMillisecond = 1e-3, kMicrosecond = 1e-6, kGiga = 1e9;
constexpr std::size_t kRowsMax = 12;  // Rows of a kind in the table; JSON has all.
constexpr std::chrono::minutes kDeadline(10);

std::string ms(double seconds) { return formatted("%.2f", seconds / kMillisecond); }
std::string percent(double share) { return formatted("%.1f %%", 100 * share); }

// The ranks but the first, as processes of their own.  What goes wrong ends all of them.
class OtherRanks {
 public:
  template <class Body>
  OtherRanks(std::int32_t ranks, const Body& body) {
    const pid_t parent = ::getpid();
    for (std::int32_t rank = 1; rank < ranks; ++rank) {
      const pid_t child = ::fork();
      if (child < 0) throw Error(str("profile: rank ", rank, " cannot be started"));
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(1);
        ::_exit(body(rank));
      }
      children_.push_back(child);
    }
  }
  ~OtherRanks() {
    for (const pid_t child : children_) ::kill(child, SIGKILL);
    for (const pid_t child : children_) ::waitpid(child, nullptr, 0);
  }
  OtherRanks(const OtherRanks&) = delete;
  OtherRanks& operator=(const OtherRanks&) = delete;

  // Throws: Error for a rank that has failed.
  void finish() {
    std::int32_t rank = 0;
    for (const pid_t child : std::exchange(children_, {})) {
      int status = 0;
      ::waitpid(child, &status, 0);
      ++rank;
      if (status != 0) throw Error(str("profile: rank ", rank, " ended before it was done"));
    }
  }

 private:
  std::vector<pid_t> children_;
};

StepLedger ledger_of_rank(const ProfileCommand& command, const config::Config& config,
                          comm::Communicator& inner) {
  std::optional<ProgressLines> lines;
  if (inner.rank() == Rank(0)) lines.emplace();
  probe::MessageTimes messages;
  const auto noted = probe::note_times(inner, messages);
  comm::Communicator& communicator = *noted;
  const mesh::Shape mesh = config::resolve_mesh(config.mesh, communicator.world_size());
  const config::Batch batch = config::resolve_batch(config.batch, mesh);
  run::Model model = run::model_without_data(config);
  train::Trainer trainer(run::options_of(config, mesh, batch), model.layers, model.loss,
                         communicator);
  const std::int64_t samples = batch.train_batch_size / mesh.size(mesh::Role::OtherSamples);
  // Ranks that share layers take the same samples.
  const auto replica = static_cast<std::uint64_t>(trainer.rank_model().groups().other_samples.here);
  const at::Tensor text =
      at::randint(model.vocabulary, {samples, config.model.sequence_length + 1},
                  at::detail::createCPUGenerator(replica), at::TensorOptions(at::kLong));
  return run::measure_ledger(trainer, messages, {text.slice(1, 0, -1).contiguous()},
                             {text.slice(1, 1).contiguous()},
                             {.steps = command.steps, .at = [&](const std::string& what) {
                                if (lines) lines->at(str("profile: ", what));
                              }});
}

// Operators of a kind by their time, the longest first.
std::vector<std::pair<Operator, OperatorCost>> longest_of(const StepLedger& ledger,
                                                          OperatorKind kind) {
  std::vector<std::pair<Operator, OperatorCost>> all;
  for (const auto& each : ledger.operators.costs) {
    if (each.first.kind == kind) all.push_back(each);
  }
  std::ranges::sort(all, std::greater<>(), [](const auto& each) { return each.second.ns; });
  return all;
}

std::string sizes_text(const probe::ProductSizes& sizes) {
  const std::string one = str(sizes.rows, " x ", sizes.inner, " x ", sizes.columns);
  return sizes.batch == 1 ? one : str(sizes.batch, " of ", one);
}

double seconds_of_step(const StepLedger& ledger, const OperatorCost& cost) {
  return 1e-9 * static_cast<double>(cost.ns) / static_cast<double>(ledger.steps);
}

std::string calls_of_step(const StepLedger& ledger, const OperatorCost& cost) {
  return formatted("%.0f", static_cast<double>(cost.calls) / static_cast<double>(ledger.steps));
}

std::string summary_table(const StepLedger& ledger) {
  std::vector<TextRow> rows = {{"where a step goes", "ms", "share", "at best ms", ""}};
  for (const LedgerRow& row : rows_of(ledger)) {
    rows.push_back({row.name, ms(row.seconds), percent(row.seconds / ledger.step_s),
                    row.at_best_s ? ms(*row.at_best_s) : "", ""});
  }
  rows.push_back({"the step", ms(ledger.step_s), "100.0 %", "", ""});
  return text_table(rows);
}

// A table of operators of one kind; `rate` is their amount a second.
template <class Rate>
std::string operators_table(const StepLedger& ledger, OperatorKind kind, TextRow head,
                            const Rate& rate) {
  const auto all = longest_of(ledger, kind);
  if (all.empty()) return "";
  std::vector<TextRow> rows = {std::move(head)};
  for (std::size_t i = 0; i < std::min(all.size(), kRowsMax); ++i) {
    const auto& [op, cost] = all[i];
    const double seconds = 1e-9 * static_cast<double>(cost.ns);
    const std::string name =
        kind == OperatorKind::Product ? str(op.name, "  ", sizes_text(op.sizes)) : op.name;
    const auto best = at_best(op, cost, ledger.machine);
    rows.push_back({name, calls_of_step(ledger, cost), ms(seconds_of_step(ledger, cost)),
                    formatted("%.1f", rate(cost) / seconds / kGiga),
                    best ? percent(*best / seconds) : "", ""});
  }
  std::string text = str("\n", text_table(rows));
  if (all.size() > kRowsMax) text += str("and ", all.size() - kRowsMax, " others\n");
  return text;
}

std::string as_text(std::int32_t rank, const StepLedger& ledger) {
  const auto operations = [](const OperatorCost& cost) { return cost.operations; };
  const auto bytes = [](const OperatorCost& cost) { return static_cast<double>(cost.bytes); };
  return str(
      "rank ", rank, ": a step takes ", ms(ledger.unwatched_s), " ms, and ", ms(ledger.step_s),
      " ms under the watch; ", formatted("%.0f", ledger.faults), " page faults of ",
      formatted("%.2f", ledger.machine.fault_s / kMicrosecond), " us\n\n", summary_table(ledger),
      operators_table(ledger, OperatorKind::Product,
                      {"products: rows x inner x columns", "calls", "ms", "GFLOP/s",
                       formatted("of %.0f", ledger.machine.product_peak / kGiga), ""},
                      operations),
      operators_table(ledger, OperatorKind::Attention,
                      {"attention", "calls", "ms", "GFLOP/s",
                       formatted("of %.0f", ledger.machine.product_peak / kGiga), ""},
                      operations),
      operators_table(ledger, OperatorKind::Pass,
                      {"passes over elements", "calls", "ms", "GB/s", "of the bandwidth", ""},
                      bytes));
}

std::string operators_json(const StepLedger& ledger, OperatorKind kind) {
  std::vector<std::string> all;
  for (const auto& [op, cost] : longest_of(ledger, kind)) {
    std::string sizes;
    if (kind == OperatorKind::Product) {
      sizes = str(", \"batch\": ", op.sizes.batch, ", \"rows\": ", op.sizes.rows,
                  ", \"inner\": ", op.sizes.inner, ", \"columns\": ", op.sizes.columns);
    }
    const auto steps = static_cast<double>(ledger.steps);
    const auto best = at_best(op, cost, ledger.machine);
    all.push_back(str("{\"name\": ", json_quote(op.name), sizes,
                      ", \"calls\": ", static_cast<double>(cost.calls) / steps,
                      ", \"ms\": ", seconds_of_step(ledger, cost) / kMillisecond,
                      ", \"faults\": ", static_cast<double>(cost.faults) / steps,
                      ", \"bytes\": ", static_cast<double>(cost.bytes) / steps,
                      ", \"operations\": ", cost.operations / steps,
                      best ? str(", \"at_best_ms\": ", *best / steps / kMillisecond) : "", "}"));
  }
  return str("[\n    ", join(all, ",\n    "), "]");
}

std::string to_json(std::int32_t rank, const StepLedger& ledger) {
  std::vector<std::string> rows, bandwidths;
  for (const LedgerRow& row : rows_of(ledger)) {
    rows.push_back(
        str("{\"name\": ", json_quote(row.name), ", \"ms\": ", row.seconds / kMillisecond,
            row.at_best_s ? str(", \"at_best_ms\": ", *row.at_best_s / kMillisecond) : "", "}"));
  }
  for (const auto& [bytes, rate] : ledger.machine.bandwidths) {
    bandwidths.push_back(str("{\"bytes\": ", bytes, ", \"gb_per_s\": ", rate / kGiga, "}"));
  }
  return str("{\"rank\": ", rank, ", \"steps\": ", ledger.steps,
             ", \"step_ms\": ", ledger.step_s / kMillisecond,
             ", \"unwatched_ms\": ", ledger.unwatched_s / kMillisecond,
             ", \"page_faults\": ", ledger.faults,
             ", \"fault_us\": ", ledger.machine.fault_s / kMicrosecond,
             ", \"product_peak_gflops\": ", ledger.machine.product_peak / kGiga,
             ",\n   \"bandwidths\": [", join(bandwidths, ", "), "],\n   \"rows\": [\n    ",
             join(rows, ",\n    "),
             "],\n   \"products\": ", operators_json(ledger, OperatorKind::Product),
             ",\n   \"attention\": ", operators_json(ledger, OperatorKind::Attention),
             ",\n   \"passes\": ", operators_json(ledger, OperatorKind::Pass), "}");
}

}  // namespace

int run_ledger(const ProfileCommand& command, const config::Config& config, int threads) {
  const auto ranks = static_cast<std::int32_t>(command.run.ranks(config.mesh));
  config::resolve_batch(config.batch, config::resolve_mesh(config.mesh, ranks));
  const auto cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  if (ranks * threads > cores) {
    write_message(str("penstock: profile: ", ranks, " ranks share ", cores,
                      " cores: waits have the time that others compute in"));
  }
  const WorkFolder folder("ledger");
  const auto texts_of = [&](std::int32_t rank) {
    at::set_num_threads(threads);
    if (!run::offloads(config)) offload::keep_freed_memory();  // Ranks that train do so.
    const auto communicator = comm::connect({.kind = comm::Rendezvous::Kind::File,
                                             .path = folder.file("ranks"),
                                             .rank = Rank(rank),
                                             .world_size = ranks},
                                            kDeadline);
    const StepLedger ledger = ledger_of_rank(command, config, *communicator);
    const auto texts = communicator->exchange(
        "the ledger", command.json ? to_json(rank, ledger) : as_text(rank, ledger));
    communicator->barrier("end");
    return texts;
  };
  OtherRanks others(ranks, [&](std::int32_t rank) {
    try {
      texts_of(rank);
      return 0;
    } catch (const std::exception&) {  // The first rank hears of it, or finds it itself.
      return 1;
    }
  });
  const std::vector<std::string> texts = texts_of(0);
  others.finish();
  write_result(command.json ? str("{\"ranks\": [\n  ", join(texts, ",\n  "), "]}\n")
                            : join(texts, "\n"));
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace penstock::cli
