#include "penstock/runtime/run/model_card.h"

#include <torch/version.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "penstock/core/foreign_file.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"
#include "penstock/plan/config/flat.h"
#include "penstock/plan/render/number.h"

namespace penstock::run {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kCardBytesMax = std::size_t{1} << 20;
constexpr std::size_t kRowsMax = 20;

std::string base_license(const std::string& folder) {
  std::error_code error;
  const std::string card = folder + "/README.md";
  if (fs::is_regular_file(card, error)) {
    const std::string lines =
        license_lines(read_foreign_file("the card of a model", card, kCardBytesMax));
    if (!lines.empty()) return lines;
  }
  for (const char* const name : {"LICENSE", "LICENSE.md", "LICENSE.txt"}) {
    if (fs::is_regular_file(str(folder, "/", name), error)) {
      return str("license: other\nlicense_link: ", name, "\n");
    }
  }
  return "";
}

std::string names_of(const config::DataConfig& data) {
  std::vector<std::string> names;
  if (!data.path.empty()) names.push_back("`" + hugging_face::last_part(data.path) + "`");
  for (const config::DataSource& each : data.sources) {
    names.push_back(
        str("`", hugging_face::last_part(each.path), "` (weight ", shortest(each.weight), ")"));
  }
  return join(names, ", ");
}

// Keys that say where files are, how ranks are started and what they tell: they are of a machine.
bool is_of_machine(const std::string& key) {
  static const std::vector<std::string> of_one_rank = config::keys_of_one_rank();
  static constexpr std::array<std::string_view, 5> kParts = {"launch.", "checkpoint.", "run.save",
                                                             "run.sample_", "run.timeline"};
  return std::ranges::find(of_one_rank, key) != of_one_rank.end() ||
         std::ranges::any_of(kParts, [&](std::string_view part) { return key.starts_with(part); });
}

std::string settings_of(const config::Config& config) {
  std::string rows = "| key | value |\n|---|---|\n";
  for (const config::Override& each : config::changes(config::Config(), config, "")) {
    const bool says_nothing = each.value == "null" || each.value == "{}";
    if (says_nothing || is_of_machine(each.path)) continue;
    const std::string value = join(penstock::split(each.value, '|'), "\\|");  // A cell's end.
    rows += str("| `", each.path, "` | `", value, "` |\n");
  }
  return rows;
}

std::string loss_at(const std::vector<render::LossPoint>& points, double step) {
  const auto found = std::ranges::find(points, step, &render::LossPoint::step);
  return found == points.end() ? "" : render::fixed(found->loss, 4);
}

std::string losses_of(const render::LossCurve& curve) {
  std::string head = "| step | training loss | validation loss", rule = "|---|---|---";
  if (!curve.validation_name.empty()) head += " of " + curve.validation_name;
  for (const render::LossSeries& each : curve.others) {
    head += " | of " + each.name;
    rule += "|---";
  }
  std::vector<double> steps;
  for (const render::LossPoint& each : curve.validation) steps.push_back(each.step);
  if (steps.empty() && !curve.train.empty()) {
    steps = {curve.train.front().step, curve.train.back().step};
  }
  const std::size_t stride = (steps.size() + kRowsMax - 1) / kRowsMax;
  std::string rows;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool is_best = curve.best && curve.best->step == steps[i];
    if (i % stride != 0 && i + 1 != steps.size() && !is_best) continue;
    rows += str("| ", shortest(steps[i]), is_best ? " (best)" : "", " | ",
                loss_at(curve.train, steps[i]), " | ", loss_at(curve.validation, steps[i]));
    for (const render::LossSeries& each : curve.others) {
      rows += " | " + loss_at(each.points, steps[i]);
    }
    rows += " |\n";
  }
  return head + " |\n" + rule + "|\n" + rows;
}

}  // namespace

std::string license_lines(const std::string& card) {
  if (!card.starts_with("---\n")) return "";
  std::string lines;
  const std::vector<std::string> all = penstock::split(card, '\n');
  for (std::size_t i = 1; i < all.size() && all[i] != "---"; ++i) {
    if (all[i].starts_with("license")) lines += all[i] + "\n";
  }
  return lines;
}

std::string model_card(const config::Config& config, const Model& model, const TrainedOn& trained) {
  const std::string base = model.folder->name(), name = hugging_face::last_part(config.run.save);
  const bool are_adapters = model.adapter && !model.merges_adapter;
  std::string text =
      str("---\nbase_model: ", json_quote(base),
          "\nlibrary_name: ", are_adapters ? "peft" : "transformers", "\n",
          base_license(model.folder->path()), "pipeline_tag: text-generation\n",
          "tags:\n- penstock\n", are_adapters ? "- lora\n" : "", "---\n\n# ", name, "\n\n",
          are_adapters ? "Adapters for " : "Made from ", base,
          ", trained with penstock.\n\n## What it was trained on\n\n", names_of(config.data), ": ",
          trained.data, ".\n\n", "The model is that of step ", trained.step, " of ",
          config.run.steps, ", on ", trained.layout, ".\n");
  if (!model.summary.empty()) text += "\n" + model.summary;
  text += str("\n## Losses\n\nMeans over tokens that count, in nats.\n\n",
              losses_of(trained.losses), "\n## Settings\n\n", settings_of(config),
              "\n## Versions\n\n- penstock ", kVersion, "\n- torch ", TORCH_VERSION, "\n");
  return text;
}

std::string merged_card(const hugging_face::ModelFolder& model, const std::string& adapters,
                        const std::string& to) {
  return str("---\nbase_model: ", json_quote(model.name()), "\nlibrary_name: transformers\n",
             base_license(model.path()),
             "pipeline_tag: text-generation\ntags:\n- penstock\n---\n\n# ",
             hugging_face::last_part(to), "\n\n", model.name(), " with the adapters ",
             hugging_face::last_part(adapters),
             " added to its weights, by `penstock checkpoint merge` ", kVersion, ".\n");
}

}  // namespace penstock::run
