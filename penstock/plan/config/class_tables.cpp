#include <algorithm>
#include <array>

#include "penstock/core/text.h"
#include "penstock/plan/config/classes.h"

namespace penstock::config {
namespace {

using Read = std::optional<Complaint>;

template <class T, class Kind>
Read read_as(const Kind& kind, const json::Value& json, json::Value& exact) {
  T value{};
  exact = json;
  if (auto wrong = kind.read(json, value)) return wrong;
  exact.data = std::move(value);
  return {};
}

Read read_numbers(std::size_t count, const Number& kind, const json::Value& json,
                  json::Value& exact) {
  std::vector<double> values;
  if (auto wrong = List{kind}.read(json, values)) return wrong;
  if (values.size() != count) {
    return Complaint{str(": expected a list of ", count, " numbers, found ", values.size()), &json};
  }
  exact = json;
  return {};
}

Read read_word(std::initializer_list<std::string_view> words, const json::Value& json,
               json::Value& exact) {
  exact = json;
  const auto* text = std::get_if<std::string>(&json.data);
  if (text != nullptr && std::ranges::find(words, *text) != words.end()) return {};
  std::vector<std::string> quoted;
  for (const std::string_view word : words) quoted.push_back(json_quote(word));
  return wrong_type(either(quoted), json);
}

constexpr ArgumentKind kAnyNumber = {"a number", [](const json::Value& json, json::Value& exact) {
                                       return read_as<double>(Number{.low = -Number::kAny}, json,
                                                              exact);
                                     }};
constexpr ArgumentKind kNotNegative = {"a number, at least 0",
                                       [](const json::Value& json, json::Value& exact) {
                                         return read_as<double>(Number{}, json, exact);
                                       }};
constexpr ArgumentKind kShare = {"a number, in [0, 1]",
                                 [](const json::Value& json, json::Value& exact) {
                                   return read_as<double>(Number{.low = 0, .high = 1}, json, exact);
                                 }};
constexpr ArgumentKind kShareAboveZero = {
    "a number, in (0, 1]", [](const json::Value& json, json::Value& exact) {
      return read_as<double>(Number{.low = 0, .high = 1, .without_low = true}, json, exact);
    }};
constexpr ArgumentKind kAtLeastOne = {"a number, at least 1",
                                      [](const json::Value& json, json::Value& exact) {
                                        return read_as<double>(Number{.low = 1}, json, exact);
                                      }};
constexpr ArgumentKind kAtMostZero = {
    "a number, at most 0", [](const json::Value& json, json::Value& exact) {
      return read_as<double>(Number{.low = -1e300, .high = 0}, json, exact);
    }};
constexpr ArgumentKind kSteps = {"an integer, at least 0",
                                 [](const json::Value& json, json::Value& exact) {
                                   return read_as<std::int64_t>(Integer{}, json, exact);
                                 }};
constexpr ArgumentKind kCount = {"an integer, at least 1",
                                 [](const json::Value& json, json::Value& exact) {
                                   return read_as<std::int64_t>(Integer{1}, json, exact);
                                 }};
constexpr ArgumentKind kStepsOrNull = {"an integer, at least 0, or null",
                                       [](const json::Value& json, json::Value& exact) {
                                         exact = json;
                                         return json.is_null() ? Read{} : kSteps.read(json, exact);
                                       }};
constexpr ArgumentKind kCountOrNull = {"an integer, at least 1, or null",
                                       [](const json::Value& json, json::Value& exact) {
                                         exact = json;
                                         return json.is_null() ? Read{} : kCount.read(json, exact);
                                       }};
constexpr ArgumentKind kFlag = {"true or false", [](const json::Value& json, json::Value& exact) {
                                  return read_as<bool>(Flag{}, json, exact);
                                }};
constexpr ArgumentKind kFlagOrNull = {"true, false or null",
                                      [](const json::Value& json, json::Value& exact) {
                                        exact = json;
                                        return json.is_null() ? Read{} : kFlag.read(json, exact);
                                      }};
constexpr ArgumentKind kOff = {
    "false", [](const json::Value& json, json::Value& exact) -> Read {
      if (auto wrong = kFlag.read(json, exact)) return wrong;
      if (!std::get<bool>(exact.data)) return {};
      return Complaint{" = true: parameters are on the CPU, and no graph of updates is kept",
                       &json};
    }};
constexpr ArgumentKind kBetas = {
    "a list of 2 numbers, each in [0, 1)", [](const json::Value& json, json::Value& exact) {
      return read_numbers(2, Number{.low = 0, .high = 1, .without_high = true}, json, exact);
    }};
constexpr ArgumentKind kEtas = {"a list of 2 numbers, the first in (0, 1), the second above 1",
                                [](const json::Value& json, json::Value& exact) -> Read {
                                  if (auto wrong = read_numbers(2, Number{}, json, exact))
                                    return wrong;
                                  std::vector<double> etas;
                                  static_cast<void>(List{Number{}}.read(json, etas));
                                  if (0 < etas[0] && etas[0] < 1 && 1 < etas[1]) return {};
                                  return Complaint{
                                      ": the first must be in (0, 1), the second above 1", &json};
                                }};
constexpr ArgumentKind kStepSizes = {"a list of 2 numbers, each at least 0",
                                     [](const json::Value& json, json::Value& exact) {
                                       return read_numbers(2, Number{}, json, exact);
                                     }};
constexpr ArgumentKind kCoefficients = {
    "a list of 3 numbers", [](const json::Value& json, json::Value& exact) {
      return read_numbers(3, Number{.low = -1e300}, json, exact);
    }};
constexpr ArgumentKind kMuonRate = {
    "\"original\", \"match_rms_adamw\" or null", [](const json::Value& json, json::Value& exact) {
      exact = json;
      return json.is_null() ? Read{} : read_word({"original", "match_rms_adamw"}, json, exact);
    }};
constexpr ArgumentKind kMilestones = {"a list of integers, each at least 0",
                                      [](const json::Value& json, json::Value& exact) {
                                        std::vector<std::int64_t> steps;
                                        exact = json;
                                        return List{Integer{}}.read(json, steps);
                                      }};
// One for all parameter groups, or a list with one for each.
constexpr ArgumentKind kRates = {"a number, at least 0, or a list of them",
                                 [](const json::Value& json, json::Value& exact) {
                                   if (!std::holds_alternative<json::Value::Array>(json.data)) {
                                     return kNotNegative.read(json, exact);
                                   }
                                   exact = json;
                                   std::vector<double> rates;
                                   return List{Number{}}.read(json, rates);
                                 }};
constexpr ArgumentKind kRatesOrNull = {"a number, at least 0, a list of them, or null",
                                       [](const json::Value& json, json::Value& exact) {
                                         exact = json;
                                         return json.is_null() ? Read{} : kRates.read(json, exact);
                                       }};
constexpr ArgumentKind kWarmup = {"\"log\" or \"linear\"",
                                  [](const json::Value& json, json::Value& exact) {
                                    return read_word({"log", "linear"}, json, exact);
                                  }};
constexpr ArgumentKind kAnneal = {"\"cos\" or \"linear\"",
                                  [](const json::Value& json, json::Value& exact) {
                                    return read_word({"cos", "linear"}, json, exact);
                                  }};
constexpr ArgumentKind kCycle = {"\"triangular\", \"triangular2\" or \"exp_range\"",
                                 [](const json::Value& json, json::Value& exact) {
                                   return read_word({"triangular", "triangular2", "exp_range"},
                                                    json, exact);
                                 }};
constexpr ArgumentKind kFresh = {
    "-1", [](const json::Value& json, json::Value& exact) -> Read {
      exact = json;
      const auto* number = std::get_if<std::int64_t>(&json.data);
      if (number == nullptr) return wrong_type("-1", json);
      if (*number == -1) return {};
      return Complaint{str(" = ", *number, ": a course goes on by load_checkpoint()"), &json};
    }};

constexpr auto kAdamArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"betas", &kBetas},
    {"eps", &kNotNegative},
    {"weight_decay", &kNotNegative},
    {"amsgrad", &kFlag},
    {"maximize", &kFlag},
    {"foreach", &kFlagOrNull},
    {"fused", &kFlagOrNull},
    {"capturable", &kOff},
    {"differentiable", &kOff},
    {"adam_w_mode", &kFlag},
    {"torch_adam", &kFlag},
});
constexpr auto kSgdArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"momentum", &kNotNegative},
    {"dampening", &kAnyNumber},
    {"weight_decay", &kNotNegative},
    {"nesterov", &kFlag},
    {"maximize", &kFlag},
    {"foreach", &kFlagOrNull},
    {"fused", &kFlagOrNull},
    {"differentiable", &kOff},
});
constexpr auto kAdagradArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"lr_decay", &kNotNegative},
    {"weight_decay", &kNotNegative},
    {"initial_accumulator_value", &kNotNegative},
    {"eps", &kNotNegative},
    {"maximize", &kFlag},
    {"foreach", &kFlagOrNull},
    {"fused", &kFlagOrNull},
    {"differentiable", &kOff},
});
constexpr auto kAdadeltaArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"rho", &kShare},
    {"eps", &kNotNegative},
    {"weight_decay", &kNotNegative},
    {"maximize", &kFlag},
    {"foreach", &kFlagOrNull},
    {"capturable", &kOff},
    {"differentiable", &kOff},
});
constexpr auto kAdamaxArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"betas", &kBetas},
    {"eps", &kNotNegative},
    {"weight_decay", &kNotNegative},
    {"maximize", &kFlag},
    {"foreach", &kFlagOrNull},
    {"capturable", &kOff},
    {"differentiable", &kOff},
});
constexpr auto kAsgdArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"lambd", &kAnyNumber},
    {"alpha", &kAnyNumber},
    {"t0", &kAnyNumber},
    {"weight_decay", &kNotNegative},
    {"maximize", &kFlag},
    {"foreach", &kFlagOrNull},
    {"capturable", &kOff},
    {"differentiable", &kOff},
});
constexpr auto kNadamArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"betas", &kBetas},
    {"eps", &kNotNegative},
    {"weight_decay", &kNotNegative},
    {"momentum_decay", &kNotNegative},
    {"decoupled_weight_decay", &kFlag},
    {"maximize", &kFlag},
    {"foreach", &kFlagOrNull},
    {"capturable", &kOff},
    {"differentiable", &kOff},
});
constexpr auto kRadamArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"betas", &kBetas},
    {"eps", &kNotNegative},
    {"weight_decay", &kNotNegative},
    {"decoupled_weight_decay", &kFlag},
    {"maximize", &kFlag},
    {"foreach", &kFlagOrNull},
    {"capturable", &kOff},
    {"differentiable", &kOff},
});
constexpr auto kRmspropArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"alpha", &kNotNegative},
    {"eps", &kNotNegative},
    {"weight_decay", &kNotNegative},
    {"momentum", &kNotNegative},
    {"centered", &kFlag},
    {"maximize", &kFlag},
    {"foreach", &kFlagOrNull},
    {"capturable", &kOff},
    {"differentiable", &kOff},
});
constexpr auto kRpropArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"etas", &kEtas},
    {"step_sizes", &kStepSizes},
    {"maximize", &kFlag},
    {"foreach", &kFlagOrNull},
    {"capturable", &kOff},
    {"differentiable", &kOff},
});
constexpr auto kAdafactorArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"beta2_decay", &kAtMostZero},
    {"eps", &kStepSizes},
    {"d", &kAtLeastOne},
    {"weight_decay", &kNotNegative},
    {"maximize", &kFlag},
    {"foreach", &kFlagOrNull},
});
constexpr auto kMuonArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"weight_decay", &kNotNegative},
    {"momentum", &kNotNegative},
    {"nesterov", &kFlag},
    {"ns_coefficients", &kCoefficients},
    {"eps", &kNotNegative},
    {"ns_steps", &kCount},
    {"adjust_lr_fn", &kMuonRate},
});

constexpr auto kLionArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"betas", &kBetas},
    {"weight_decay", &kNotNegative},
});
constexpr auto kLambArguments = std::to_array<Argument>({
    {"lr", &kNotNegative},
    {"betas", &kBetas},
    {"eps", &kNotNegative},
    {"weight_decay", &kNotNegative},
    {"max_coeff", &kNotNegative},
    {"min_coeff", &kNotNegative},
});

constexpr std::string_view kNone = "torch.optim has none; give initialize() an optimizer";
constexpr std::string_view kUseAdam = "it is an Adam by another name; use \"Adam\"";
constexpr std::string_view kUncompressed = "gradients are not compressed; use \"Adam\" or \"Lamb\"";

constexpr auto kOptimizers = std::to_array<NamedClass>({
    {"Adam", kAdamArguments},
    {"AdamW", kAdamArguments},
    {"SGD", kSgdArguments},
    {"ASGD", kAsgdArguments},
    {"Adadelta", kAdadeltaArguments},
    {"Adagrad", kAdagradArguments},
    {"Adamax", kAdamaxArguments},
    {"NAdam", kNadamArguments},
    {"RAdam", kRadamArguments},
    {"RMSprop", kRmspropArguments},
    {"Rprop", kRpropArguments},
    {"Adafactor", kAdafactorArguments},
    {"Muon", kMuonArguments},
    {"LBFGS", {}, "it computes the loss again by itself, which no engine does; use another"},
    {"SparseAdam", {}, "gradients are dense; use Adam"},
    {"Lion", kLionArguments},
    {"Lamb", kLambArguments},
    {"FusedAdam", {}, kUseAdam},
    {"CPUAdam", {}, kUseAdam},
    {"DeepSpeedCPUAdam", {}, kUseAdam},
    {"FusedLamb", {}, "it is a Lamb by another name; use \"Lamb\""},
    {"MuAdam", {}, kNone},
    {"MuAdamW", {}, kNone},
    {"MuSGD", {}, kNone},
    {"OneBitAdam", {}, kUncompressed},
    {"OneBitLamb", {}, kUncompressed},
    {"ZeroOneAdam", {}, kUncompressed},
});

constexpr Argument kLastEpoch = {"last_epoch", &kFresh};
constexpr Argument kLastBatch = {"last_batch_iteration", &kFresh};  // DeepSpeed's default.
constexpr auto kWarmupArguments = std::to_array<Argument>({
    {"warmup_min_lr", &kRates},
    {"warmup_max_lr", &kRatesOrNull},
    {"warmup_num_steps", &kSteps},
    {"warmup_type", &kWarmup},
    kLastBatch,
});
constexpr auto kWarmupDecayArguments = std::to_array<Argument>({
    {"total_num_steps", &kSteps, true},
    {"warmup_min_lr", &kRates},
    {"warmup_max_lr", &kRatesOrNull},
    {"warmup_num_steps", &kSteps},
    {"warmup_type", &kWarmup},
    kLastBatch,
});
constexpr auto kWarmupCosineArguments = std::to_array<Argument>({
    {"total_num_steps", &kSteps, true},
    {"warmup_num_steps", &kSteps},
    {"warmup_min_ratio", &kNotNegative},
    {"cos_min_ratio", &kNotNegative},
    {"warmup_type", &kWarmup},
    kLastBatch,
});
constexpr auto kRangeArguments = std::to_array<Argument>({
    {"lr_range_test_min_lr", &kRates},
    {"lr_range_test_step_size", &kCount},
    {"lr_range_test_step_rate", &kNotNegative},
    {"lr_range_test_staircase", &kFlag},
    kLastBatch,
});
constexpr auto kDeepSpeedCycleArguments = std::to_array<Argument>({
    {"cycle_min_lr", &kRates, true},
    {"cycle_max_lr", &kRates, true},
    {"decay_lr_rate", &kNotNegative},
    {"cycle_first_step_size", &kCount},
    {"cycle_second_step_size", &kCountOrNull},
    {"cycle_first_stair_count", &kSteps},
    {"cycle_second_stair_count", &kStepsOrNull},
    {"decay_step_size", &kSteps},
    {"cycle_momentum", &kFlag},
    {"cycle_min_mom", &kShare},
    {"cycle_max_mom", &kShare},
    {"decay_mom_rate", &kNotNegative},
    kLastBatch,
});
constexpr auto kConstantArguments =
    std::to_array<Argument>({{"factor", &kShare}, {"total_iters", &kSteps}, kLastEpoch});
constexpr auto kCosineArguments =
    std::to_array<Argument>({{"T_max", &kCount, true}, {"eta_min", &kNotNegative}, kLastEpoch});
constexpr auto kRestartsArguments = std::to_array<Argument>(
    {{"T_0", &kCount, true}, {"T_mult", &kCount}, {"eta_min", &kNotNegative}, kLastEpoch});
constexpr auto kCyclicArguments = std::to_array<Argument>({
    {"base_lr", &kRates, true},
    {"max_lr", &kRates, true},
    {"step_size_up", &kCount},
    {"step_size_down", &kCountOrNull},
    {"mode", &kCycle},
    {"gamma", &kNotNegative},
    {"cycle_momentum", &kFlag},
    {"base_momentum", &kShare},
    {"max_momentum", &kShare},
    kLastEpoch,
});
constexpr auto kExponentialArguments =
    std::to_array<Argument>({{"gamma", &kNotNegative, true}, kLastEpoch});
constexpr auto kLinearArguments = std::to_array<Argument>({{"start_factor", &kShareAboveZero},
                                                           {"end_factor", &kShare},
                                                           {"total_iters", &kCount},
                                                           kLastEpoch});
constexpr auto kMultiStepArguments = std::to_array<Argument>(
    {{"milestones", &kMilestones, true}, {"gamma", &kNotNegative}, kLastEpoch});
constexpr auto kOneCycleArguments = std::to_array<Argument>({
    {"max_lr", &kRates, true},
    {"total_steps", &kCountOrNull},
    {"epochs", &kCountOrNull},
    {"steps_per_epoch", &kCountOrNull},
    {"pct_start", &kShare},
    {"anneal_strategy", &kAnneal},
    {"cycle_momentum", &kFlag},
    {"base_momentum", &kShare},
    {"max_momentum", &kShare},
    {"div_factor", &kAtLeastOne},
    {"final_div_factor", &kAtLeastOne},
    {"three_phase", &kFlag},
    kLastEpoch,
});
constexpr auto kPolynomialArguments =
    std::to_array<Argument>({{"total_iters", &kCount}, {"power", &kNotNegative}, kLastEpoch});
constexpr auto kStepArguments =
    std::to_array<Argument>({{"step_size", &kCount, true}, {"gamma", &kNotNegative}, kLastEpoch});

constexpr std::string_view kNoJson = "its arguments are no JSON; give initialize() an lr_scheduler";

constexpr auto kSchedulers = std::to_array<NamedClass>({
    {"WarmupLR", kWarmupArguments},
    {"WarmupDecayLR", kWarmupDecayArguments},
    {"WarmupCosineLR", kWarmupCosineArguments},
    {"LRRangeTest", kRangeArguments},
    {"ConstantLR", kConstantArguments},
    {"CosineAnnealingLR", kCosineArguments},
    {"CosineAnnealingWarmRestarts", kRestartsArguments},
    {"CyclicLR", kCyclicArguments},
    {"ExponentialLR", kExponentialArguments},
    {"LinearLR", kLinearArguments},
    {"MultiStepLR", kMultiStepArguments},
    {"OneCycleLR", kOneCycleArguments},
    {"PolynomialLR", kPolynomialArguments},
    {"StepLR", kStepArguments},
    {"OneCycle", kDeepSpeedCycleArguments},
    {"ReduceLROnPlateau", {}, "it needs a metric at every step; step it yourself"},
    {"LambdaLR", {}, kNoJson},
    {"MultiplicativeLR", {}, kNoJson},
    {"ChainedScheduler", {}, kNoJson},
    {"SequentialLR", {}, kNoJson},
});

}  // namespace

std::span<const NamedClass> classes_of(ClassFamily family) {
  switch (family) {
    case ClassFamily::Optimizers:
      return kOptimizers;
    case ClassFamily::Schedulers:
      return kSchedulers;
  }
  return {};
}

}  // namespace penstock::config
