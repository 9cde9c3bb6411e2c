#include "penstock/cli/runtime/emulate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "penstock/cli/formatted.h"
#include "penstock/cli/text_table.h"
#include "penstock/config/read.h"
#include "penstock/core/error.h"
#include "penstock/core/output.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"
#include "penstock/runtime/emulate/from_config.h"

namespace penstock::cli {
namespace {

using emulate::Ledger;
using emulate::RankReport;
using emulate::Report;
using emulate::Work;

constexpr std::size_t kOwnersMax = 5;

std::string gib(std::int64_t bytes) {
  return formatted("%.2f", static_cast<double>(bytes) / (1 << 30));
}

double kernel_s(const Ledger& ledger, Work work) {
  return ledger.kernel_s[static_cast<std::size_t>(work)];
}

// What the device did with the step's time.
std::string times_table(const Report& report) {
  std::vector<TextRow> rows = {{"rank", "step s", "products", "attention", "other", "copies",
                                "messages", "host", "rest", "kernels"}};
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const RankReport& rank = report.ranks[i];
    const Ledger& step = rank.step;
    TextRow row = {std::to_string(i)};
    for (const double seconds :
         {rank.step_s, kernel_s(step, Work::Products), kernel_s(step, Work::Attention),
          kernel_s(step, Work::Other), step.copy_s, step.message_wait_s, step.host_wait_s,
          rank.rest_s()}) {
      row.push_back(formatted("%.3f", seconds));
    }
    row.push_back(std::to_string(step.all_kernels()));
    rows.push_back(std::move(row));
  }
  return text_table(rows);
}

// What the host did to the device.
std::string counts_table(const Report& report) {
  std::vector<TextRow> rows = {
      {"rank", "scalars", "copies out", "MiB", "copies in", "MiB", "messages", "GiB", "peak GiB"}};
  const auto mib = [](std::int64_t bytes) {
    return formatted("%.1f", static_cast<double>(bytes) / (1 << 20));
  };
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const Ledger& step = report.ranks[i].step;
    rows.push_back(
        {std::to_string(i), std::to_string(step.scalars), std::to_string(step.copies_out),
         mib(step.bytes_out), std::to_string(step.copies_in), mib(step.bytes_in),
         std::to_string(step.messages), gib(step.message_bytes), gib(report.ranks[i].memory.peak)});
  }
  return text_table(rows);
}

std::string at_the_peak(const Report& report) {
  const auto fullest = std::ranges::max_element(
      report.ranks, {}, [](const RankReport& each) { return each.memory.peak; });
  std::vector<std::pair<std::int64_t, std::string>> owned;
  for (const auto& [owner, bytes] : fullest->memory.owned_at_peak) owned.emplace_back(bytes, owner);
  std::ranges::sort(owned, std::greater<>());
  if (owned.size() > kOwnersMax) owned.resize(kOwnersMax);
  std::vector<std::string> words;
  for (const auto& [bytes, owner] : owned) words.push_back(str(owner, " ", gib(bytes)));
  return str("live at the peak of rank ", fullest - report.ranks.begin(),
             ", GiB by the operator that wrote it: ", join(words, ", "), "\n");
}

std::string as_text(const Report& report, std::int64_t tokens, const devices::DeviceModel& device) {
  return str(formatted("%.3f s a step, %.0f tokens a second, %.1f %% of the peak", report.step_s,
                       static_cast<double>(tokens) / report.step_s, 100 * report.share_of_peak),
             "; ", mesh::in_words(report.mesh), " on ", device.title, "\n\n",
             "seconds of a step, by what each rank's device does\n", times_table(report), "\n",
             "of a step\n", counts_table(report), "\n", at_the_peak(report));
}

std::string to_json(const Report& report, std::int64_t tokens, const devices::DeviceModel& device) {
  std::vector<std::string> ranks;
  for (const RankReport& each : report.ranks) {
    const Ledger& step = each.step;
    std::vector<std::string> owned;
    for (const auto& [owner, bytes] : each.memory.owned_at_peak) {
      owned.push_back(str(json_quote(owner), ": ", bytes));
    }
    ranks.push_back(
        str("{\"step_s\": ", each.step_s, ", \"products_s\": ", kernel_s(step, Work::Products),
            ", \"attention_s\": ", kernel_s(step, Work::Attention),
            ", \"other_s\": ", kernel_s(step, Work::Other), ", \"copies_s\": ", step.copy_s,
            ", \"rest_s\": ", each.rest_s(), ", \"message_wait_s\": ", step.message_wait_s,
            ", \"host_wait_s\": ", step.host_wait_s, ", \"kernels\": ", step.all_kernels(),
            ", \"scalars\": ", step.scalars, ", \"copies_out\": ", step.copies_out,
            ", \"bytes_out\": ", step.bytes_out, ", \"copies_in\": ", step.copies_in,
            ", \"bytes_in\": ", step.bytes_in, ", \"messages\": ", step.messages,
            ", \"message_bytes\": ", step.message_bytes, ", \"peak_bytes\": ", each.memory.peak,
            ",\n   \"live_at_peak\": {", join(owned, ", "), "}}"));
  }
  return str("{\"device\": ", json_quote(device.name), ", ", mesh::json_members(report.mesh),
             ", \"step_s\": ", report.step_s, ", \"tokens\": ", tokens,
             ", \"share_of_peak\": ", report.share_of_peak, ", \"ranks\": [\n  ",
             join(ranks, ",\n  "), "]}\n");
}

// A rank for each device.
std::int64_t ranks_of(const EmulateCommand& command, const config::MeshConfig& mesh) {
  if (command.hosts.empty()) return command.run.ranks(mesh);
  const std::int64_t devices = command.hosts[0] * command.hosts[1];
  if (command.run.nproc == 0 || command.run.nproc == devices) return devices;
  throw ConfigError(str("--hosts has ", devices, " devices, and --nproc says ", command.run.nproc));
}

}  // namespace

int run_emulate(const EmulateCommand& command) {
  devices::DeviceModel device = devices::device_model(command.device);
  const config::Config config =
      config::read_config(command.run.config, command.run.overrides).config;
  try {
    if (!command.hosts.empty()) device.devices_per_host = static_cast<int>(command.hosts[1]);
    const auto said = [](const std::string& text) {
      write_message(str("penstock: emulate: ", text));
    };
    emulate::Step step = emulate::step_of(config, ranks_of(command, config.mesh));
    step.said = said;
    step.folder = command.output;
    const Report report = emulate::emulate(step, device);
    if (!step.folder.empty()) said(str("penstock report ", step.folder, " shows the step"));
    const std::int64_t tokens = report.samples * config.model.sequence_length;
    write_result(command.json ? to_json(report, tokens, device) : as_text(report, tokens, device));
  } catch (const Error& error) {
    throw Error(str(command.run.config, ": ", error.message()), error.notes(), error.exit_code());
  }
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace penstock::cli
