#include "penstock/runtime/saving/run_state.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <memory>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"

namespace penstock::saving {

using train::Trainer;

namespace {

constexpr const char* kSkipped = "skipped steps";
constexpr const char* kScale = "gradient scale";
constexpr const char* kProgram = "program";
constexpr const char* kClientState = "client_state";  // Shared with Python's engines.

template <class Number>
Number known(const std::optional<Number>& number, std::string_view text, const std::string& what) {
  if (number) return *number;
  throw CheckpointError(str("the checkpoint's ", what, " is ", in_quotes(text)));
}

const std::string* find(const checkpoint::Texts& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? nullptr : &found->second;
}

}  // namespace

void make_states(Trainer& trainer,
                 const std::function<bool(std::string_view, std::string_view)>& is_known) {
  update::Optimizer& optimizer = trainer.optimizer();
  const std::vector<std::string_view> names = optimizer.state_names();
  for (const auto& set : trainer.rank_model().replicated().kept()) {
    for (const parameters::OwnedElements& each : set) {
      if (!each.part) continue;
      const bool are_known = std::ranges::any_of(
          names, [&](std::string_view name) { return is_known(each.parameter.name, name); });
      if (are_known) {
        optimizer.make_states(*each.part);
      } else {
        optimizer.reset_states(*each.part);
      }
    }
  }
}

void take_over(Trainer& trainer) {
  const torch::NoGradGuard no_grad;
  update::MasterWeights& masters = trainer.updates().masters();
  masters.put_back_all();
  if (update::OffloadedParts* const files = trainer.updates().memory())
    files->let_go(masters.all());
  trainer.rank_model().replicated().gather();
  trainer.rank_model().replicated().changes().note();
}

checkpoint::Texts values_of(Trainer& trainer) {
  checkpoint::Texts values = {{kSkipped, str(trainer.updates().skipped_steps())}};
  if (const auto scale = trainer.updates().scale().state()) {
    values[kScale] = str(shortest(scale->value), " ", scale->lives, " ", scale->clean_steps);
  }
  if (trainer.program().changes() > 0) {
    values[kProgram] = schedule::to_csv(trainer.layout().schedule.schedule());
  }
  return values;
}

void put_client_state(checkpoint::Texts& values, const checkpoint::Texts& client_state) {
  if (client_state.empty()) return;
  std::vector<std::string> members;
  for (const auto& [name, text] : client_state) {
    members.push_back(str(json_quote(name), ": ", json_quote(text)));
  }
  values[kClientState] = str("{", join(members, ", "), "}");
  if (client_state_in(values) == client_state) return;
  throw CheckpointError(str("the ", kClientState, " has a text that is not UTF-8"));
}

checkpoint::Texts client_state_in(const checkpoint::Texts& values) {
  const std::string* const text = find(values, kClientState);
  if (text == nullptr) return {};
  const auto source = std::make_shared<json::Source>(
      json::Source{.name = kClientState, .text = *text, .kind = json::SourceKind::Values});
  const json::Value value = json::parse(source, checkpoint::kManifestBytesMax);
  const auto* const object = std::get_if<json::Value::Object>(&value.data);
  if (object == nullptr) {
    throw CheckpointError(str("the checkpoint's ", kClientState, " is ", in_quotes(*text)));
  }
  checkpoint::Texts client_state;
  for (const json::Member& member : *object) {
    const auto* const plain = std::get_if<std::string>(&member.value.data);
    client_state[member.key] = plain ? *plain : std::string(json::text_of(member.value));
  }
  return client_state;
}

RunValues read_values(const checkpoint::Texts& values) {
  RunValues read;
  if (const std::string* program = find(values, kProgram)) read.program = *program;
  if (const std::string* skipped = find(values, kSkipped)) {
    read.skipped_steps = known(parse_integer(*skipped), *skipped, kSkipped);
  }
  if (const std::string* scale = find(values, kScale)) {
    const std::vector<std::string> numbers = penstock::split(*scale, ' ');
    if (numbers.size() != 3) {
      throw CheckpointError(str("the checkpoint's ", kScale, " is ", in_quotes(*scale)));
    }
    read.gradient_scale = {.value = known(parse_number(numbers[0]), numbers[0], kScale),
                           .lives = known(parse_integer(numbers[1]), numbers[1], kScale),
                           .clean_steps = known(parse_integer(numbers[2]), numbers[2], kScale)};
  }
  return read;
}

void set_values(Trainer& trainer, const RunValues& values) {
  trainer.program().set_saved(values.program);
  trainer.updates().set_skipped_steps(values.skipped_steps);
  update::GradientScale& scale = trainer.updates().scale();
  scale.begin_again();
  if (values.gradient_scale) scale.go_on_from(*values.gradient_scale);
}

}  // namespace penstock::saving
