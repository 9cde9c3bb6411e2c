#include "penstock/runtime/nn/torch_draws.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <optional>

#include "penstock/runtime/nn/draw.h"

namespace penstock::nn {
namespace {

using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

// Torch has it for projects beside it, in which modules are made later; none of its own operators
// has a kernel for it.
constexpr c10::DispatchKey kDraws = c10::DispatchKey::DeferredInit;

// The device on which an operator with these arguments computes; none: nowhere, or it has no
// tensor.
std::optional<c10::Device> device_of(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& each : arguments) {
    if (!each.isTensor() || !each.toTensor().defined()) continue;
    const c10::Device device = each.toTensor().device();
    return device.is_meta() ? std::nullopt : std::optional(device);
  }
  return std::nullopt;
}

DrawScope* scope_of_operators() {
  DrawScope* const scope = DrawScope::current();
  return scope != nullptr && scope->torchs() == TorchDraws::ByPlace ? scope : nullptr;
}

DispatchKeySet behind(DispatchKeySet keys) {
  return keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kDraws);
}

// Runs an operator that takes a generator, at that place of its arguments.
class GivesGenerator : public c10::OperatorKernel {
 public:
  explicit GivesGenerator(std::size_t place) : place_(place) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) const {
    const std::size_t count = op.schema().arguments().size();
    const auto arguments = torch::jit::last(*stack, count);
    const std::optional<c10::Device> device = device_of(arguments);
    DrawScope* const scope = scope_of_operators();
    if (scope != nullptr && device) {
      give(torch::jit::peek(*stack, place_, count), *device, *scope);
    }
    op.redispatchBoxed(behind(keys), stack);
  }

 private:
  static void give(c10::IValue& argument, c10::Device device, DrawScope& scope) {
    at::Generator& generator = scope.generator(device);
    if (argument.isNone()) {
      argument = generator;
      return;
    }
    const at::Generator given = argument.toGenerator();
    if (given == at::globalContext().defaultGenerator(device)) {
      argument = generator;
    } else if (given != generator && scope.own() != nullptr) {
      scope.own()->note(given);
    }
  }

  std::size_t place_;
};

// The default generator of a device goes on from where the scope's is; then it is put back.
// Those who do so take turns.
class StandsIn {
 public:
  StandsIn(at::Generator& generator, c10::Device device)
      : turn_(turn()),
        generator_(generator),
        default_(at::globalContext().defaultGenerator(device)) {
    const std::lock_guard guard(default_.mutex());
    state_ = default_.get_state();
    default_.set_state(generator_.get_state());
  }
  ~StandsIn() {
    const std::lock_guard guard(default_.mutex());
    generator_.set_state(default_.get_state());
    default_.set_state(state_);
  }
  StandsIn(const StandsIn&) = delete;
  StandsIn& operator=(const StandsIn&) = delete;

 private:
  static std::mutex& turn() {
    static std::mutex mutex;
    return mutex;
  }

  std::lock_guard<std::mutex> turn_;
  at::Generator& generator_;
  at::Generator default_;
  at::Tensor state_;
};

// Runs an operator whose kernels draw, and that takes no generator.  In host memory these draw by
// operators that do.
void draw_from_default(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const auto device = device_of(torch::jit::last(*stack, op.schema().arguments().size()));
  DrawScope* const scope = scope_of_operators();
  if (scope == nullptr || !device || device->is_cpu()) {
    op.redispatchBoxed(behind(keys), stack);
    return;
  }
  const StandsIn state(scope->generator(*device), *device);
  const c10::impl::ExcludeDispatchKeyGuard inside(kDraws);
  op.redispatchBoxed(behind(keys), stack);
}

std::optional<std::size_t> place_of_generator(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto optional = arguments[i].type()->cast<c10::OptionalType>();
    if (optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType) {
      return i;
    }
  }
  return std::nullopt;
}

// Runs other operators, which draw.
bool is_composite(const OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

void add_kernel(const OperatorHandle& op, torch::Library& library) {
  if (!op.hasSchema() || is_composite(op)) return;
  const std::string name = c10::toString(op.operator_name());
  if (const auto place = place_of_generator(op.schema())) {
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                   std::make_unique<GivesGenerator>(*place)));
  } else if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&draw_from_default>());
  }
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) {
  c10::Dispatcher& all = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : all.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    if (const auto op = all.findSchema(name)) add_kernel(*op, library);
  }
}

}  // namespace

c10::DispatchKey key_of_draws() { return kDraws; }

}  // namespace penstock::nn
