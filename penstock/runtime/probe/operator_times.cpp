#include "penstock/runtime/probe/operator_times.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/nn/passes/passes.h"

namespace penstock::probe {
namespace {

using execute::now_ns;

constexpr std::string_view kAten = "aten::";
constexpr std::string_view kOwn = "penstock::", kOwnAttention = nn::passes::kAttention;

// Products by name, and the place of the first factor among the arguments.
struct ProductRow {
  std::string_view name;
  std::size_t first;
};
constexpr std::array<ProductRow, 9> kProducts = {{{"mm", 0},
                                                  {"bmm", 0},
                                                  {"mv", 0},
                                                  {"addmm", 1},
                                                  {"addmm_", 1},
                                                  {"addmv", 1},
                                                  {"baddbmm", 1},
                                                  {"baddbmm_", 1},
                                                  {"_addmm_activation", 1}}};
// The same, of x and a weight with a row for each output.
constexpr std::array<std::string_view, 2> kLinears = {"mkldnn_linear", "_mkl_linear"};
constexpr std::string_view kLinearOfOneDnn = "mkldnn::_linear_pointwise";

bool is_attention(std::string_view name) {
  return name.find("flash_attention") != std::string_view::npos ||
         name.find("efficient_attention") != std::string_view::npos ||
         name.starts_with(kOwnAttention);
}

// What it holds, which may be less than its sizes say.
std::int64_t bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return 0;
  return static_cast<std::int64_t>(std::min(tensor.nbytes(), tensor.storage().nbytes()));
}

// Calls `see` with each tensor of a value.
template <class See>
void for_tensors(const c10::IValue& value, const See& see) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) see(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) {
      if (each.defined()) see(each);
    }
  }
}

const at::Tensor* tensor_at(c10::ArrayRef<const c10::IValue> inputs, std::size_t place) {
  if (place >= inputs.size() || !inputs[place].isTensor()) return nullptr;
  const at::Tensor& tensor = inputs[place].toTensor();
  return tensor.defined() ? &tensor : nullptr;
}

ProductSizes product_of(const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() == 3 && b.dim() == 3) return {a.size(0), a.size(1), a.size(2), b.size(2)};
  if (a.dim() != 2 || b.dim() > 2) return {};
  return {1, a.size(0), a.size(1), b.dim() == 2 ? b.size(1) : 1};
}

ProductSizes linear_of(const at::Tensor& x, const at::Tensor& weight) {
  if (x.dim() == 0 || weight.dim() != 2) return {};
  const std::int64_t inner = x.size(-1);
  return {1, inner == 0 ? 0 : x.numel() / inner, inner, weight.size(0)};
}

// The numbers by which a kernel of our own says that it is a product.
ProductSizes own_product(c10::ArrayRef<const c10::IValue> inputs) {
  std::vector<std::int64_t> numbers;
  for (const c10::IValue& each : inputs) {
    if (each.isInt()) numbers.push_back(each.toInt());
  }
  if (numbers.size() != 3) return {};
  return {1, numbers[0], numbers[1], numbers[2]};
}

ProductSizes product_sizes(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
  if (name.starts_with(kOwn)) return own_product(inputs);
  if (!name.starts_with(kAten) && name != kLinearOfOneDnn) return {};
  if (name.starts_with(kAten)) name.remove_prefix(kAten.size());
  for (const ProductRow& row : kProducts) {
    if (row.name != name) continue;
    const at::Tensor* a = tensor_at(inputs, row.first);
    const at::Tensor* b = tensor_at(inputs, row.first + 1);
    return a && b ? product_of(*a, *b) : ProductSizes{};
  }
  if (name != kLinearOfOneDnn && std::ranges::find(kLinears, name) == kLinears.end()) return {};
  const at::Tensor* x = tensor_at(inputs, 0);
  const at::Tensor* weight = tensor_at(inputs, name == "_mkl_linear" ? 2 : 1);
  return x && weight ? linear_of(*x, *weight) : ProductSizes{};
}

// Two products forward, and five backward, over all pairs of tokens, or half of them.
double attention_operations(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
  const bool is_backward = name.find("backward") != std::string_view::npos ||
                           name.find("gradient") != std::string_view::npos;
  const at::Tensor* queries = tensor_at(inputs, is_backward ? 1 : 0);
  const at::Tensor* keys = tensor_at(inputs, is_backward ? 2 : 1);
  if (queries == nullptr || keys == nullptr || queries->dim() != 4 || keys->dim() != 4) return 0;
  const bool is_causal =
      name.starts_with(kOwnAttention) || std::ranges::any_of(inputs, [](const c10::IValue& each) {
        return each.isBool() && each.toBool();
      });
  const double pairs = static_cast<double>(queries->numel()) * static_cast<double>(keys->size(2));
  return (is_backward ? 10.0 : 4.0) * pairs * (is_causal ? 0.5 : 1.0);
}

// Arguments that an operator writes to, by its schema.
using Written = std::vector<bool>;

const Written& written_by(const at::RecordFunction& function) {
  thread_local std::unordered_map<std::string, Written> known;
  thread_local std::string key;
  key = function.name();
  key += '.';
  key += function.overload_name();
  const auto [found, is_new] = known.try_emplace(key);
  if (!is_new) return found->second;
  if (const auto name = function.operator_name()) {
    if (const auto op = c10::Dispatcher::singleton().findSchema(*name)) {
      for (const c10::Argument& argument : op->schema().arguments()) {
        const auto* alias = argument.alias_info();
        found->second.push_back(alias != nullptr && alias->isWrite());
      }
    }
  }
  return found->second;
}

// A call that has begun.
struct Frame {
  std::int64_t begun_ns = 0;  // Time at which the watch was called.
  std::int64_t start_ns = 0;
  std::int64_t inner_ns = 0;  // What calls inside took, and the allocator.
  std::int64_t start_faults = 0;
  std::int64_t inner_faults = 0;
  std::int64_t bytes = 0;
  double operations = 0;
  ProductSizes sizes;
  bool writes = false;      // Writes to an argument.
  bool has_passes = false;  // Something inside reads and writes elements.
  bool has_attention = false;
  bool takes_memory = false;  // The allocator was asked inside.
  std::vector<const c10::StorageImpl*> inputs;

  // What a call inside has.
  void take_in(const Frame& inner) {
    has_passes = has_passes || inner.has_passes;
    has_attention = has_attention || inner.has_attention;
  }
};

}  // namespace

std::int64_t faults_of_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

double ProductSizes::operations() const {
  return 2.0 * static_cast<double>(batch * rows) * static_cast<double>(inner * columns);
}

namespace {

// Torch's allocator, timed on threads that are watched.  There is one for all threads, whose
// watches end in any order, and it is there while there is a watch.  Memory is what the other one
// gives, freed by a function of ours: oneDNN keeps no more of it than a pointer.
class TimedAllocator : public c10::Allocator {
 public:
  using Allocated = void (*)(std::int64_t ns, std::int64_t faults, std::int64_t times);

  explicit TimedAllocator(Allocated allocated) { allocated_ = allocated; }

  void add_watch() {
    const std::scoped_lock lock(mutex_);
    if (watches_++ > 0) return;
    inner_ = c10::GetCPUAllocator();
    deleter_ = inner_->raw_deleter();
    c10::SetCPUAllocator(this, kPriority);
  }
  void remove_watch() {
    const std::scoped_lock lock(mutex_);
    if (--watches_ == 0) c10::SetCPUAllocator(inner_, kPriority);
  }

  c10::DataPtr allocate(std::size_t size) override {
    const std::int64_t faults = faults_of_thread();
    const std::int64_t start = now_ns();
    c10::DataPtr data = inner_->allocate(size);
    // What another function frees is not timed.
    [[maybe_unused]] const bool is_timed = data.compare_exchange_deleter(deleter_, &free_timed);
    allocated_(now_ns() - start, faults_of_thread() - faults, 1);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return deleter_ == nullptr ? nullptr : &free_timed;
  }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }

 private:
  static void free_timed(void* memory) {
    const std::int64_t start = now_ns();
    deleter_(memory);
    allocated_(now_ns() - start, 0, 0);
  }

  static constexpr std::uint8_t kPriority = 100;
  std::mutex mutex_;
  std::int64_t watches_ = 0;
  c10::Allocator* inner_ = nullptr;
  inline static Allocated allocated_ = nullptr;
  inline static std::atomic<c10::DeleterFnPtr> deleter_ = nullptr;
};

}  // namespace

struct OperatorTimes::Watch {
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);

  void see_inputs(const at::RecordFunction& function, Frame& frame) const;
  // Adds what results take.  Returns whether all of them are views of inputs.
  static bool see_results(const at::RecordFunction& function, Frame& frame);
  void count(const at::RecordFunction& function, Frame& frame, std::int64_t end_ns,
             std::int64_t end_faults);
  void allocated(std::int64_t ns, std::int64_t faults, std::int64_t times);

  OperatorRecord record;
  std::vector<Frame> frames;
  at::CallbackHandle callback = 0;

  static thread_local Watch* here;
  // Never destroyed: threads may allocate while the process ends.
  static TimedAllocator& allocator() {
    static auto* const one =
        new TimedAllocator([](std::int64_t ns, std::int64_t faults, std::int64_t times) {
          if (here != nullptr) here->allocated(ns, faults, times);
        });
    return *one;
  }
};
thread_local OperatorTimes::Watch* OperatorTimes::Watch::here = nullptr;

void OperatorTimes::Watch::see_inputs(const at::RecordFunction& function, Frame& frame) const {
  const std::string_view name = function.name();
  const auto inputs = function.inputs();
  frame.sizes = product_sizes(name, inputs);
  frame.operations = is_attention(name) ? attention_operations(name, inputs) : 0.0;
  const Written& written = written_by(function);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool is_written = i < written.size() && written[i];
    frame.writes = frame.writes || is_written;
    for_tensors(inputs[i], [&](const at::Tensor& tensor) {
      frame.bytes += (is_written ? 2 : 1) * bytes_of(tensor);
      if (tensor.has_storage()) {
        frame.inputs.push_back(tensor.storage().unsafeGetStorageImpl());
      }
    });
  }
}

bool OperatorTimes::Watch::see_results(const at::RecordFunction& function, Frame& frame) {
  bool all = !frame.writes;
  bool any = false;
  for (const c10::IValue& value : function.outputs()) {
    for_tensors(value, [&](const at::Tensor& tensor) {
      any = true;
      const bool is_of_input =
          tensor.has_storage() &&
          std::ranges::find(frame.inputs, tensor.storage().unsafeGetStorageImpl()) !=
              frame.inputs.end();
      all = all && is_of_input;
      if (!is_of_input) frame.bytes += bytes_of(tensor);
    });
  }
  const std::string_view name = function.name();
  return (any && all) || name.find("empty") != std::string_view::npos;
}

std::unique_ptr<at::ObserverContext> OperatorTimes::Watch::begin(
    const at::RecordFunction& function) {
  Watch* const watch = here;
  if (watch == nullptr) return nullptr;
  Frame& frame = watch->frames.emplace_back();
  frame.begun_ns = now_ns();
  if (function.scope() == at::RecordScope::FUNCTION) watch->see_inputs(function, frame);
  frame.start_faults = faults_of_thread();
  frame.start_ns = now_ns();
  return nullptr;
}

void OperatorTimes::Watch::count(const at::RecordFunction& function, Frame& frame,
                                 std::int64_t end_ns, std::int64_t end_faults) {
  const bool is_graph = function.scope() != at::RecordScope::FUNCTION;
  const bool only_views = see_results(function, frame);
  Operator key{.name = function.name()};
  if (key.name.starts_with(kAten)) key.name.erase(0, kAten.size());
  if (is_graph) {
    key.kind = OperatorKind::Other;
  } else if (frame.sizes != ProductSizes{}) {
    key.kind = OperatorKind::Product;
    key.sizes = frame.sizes;
    frame.operations = frame.sizes.operations();
  } else if (is_attention(key.name) && !frame.has_attention) {
    key.kind = OperatorKind::Attention;
  } else if (!frame.has_passes && !only_views) {
    key.kind = OperatorKind::Pass;
  }
  OperatorCost& cost = record.costs[key];
  ++cost.calls;
  cost.ns += end_ns - frame.start_ns - frame.inner_ns;
  cost.faults += end_faults - frame.start_faults - frame.inner_faults;
  if (key.kind == OperatorKind::Other) {
    if (!frames.empty()) frames.back().take_in(frame);
    return;
  }
  cost.operations += frame.operations;
  cost.bytes += frame.bytes;
  auto& [calls, bytes] =
      cost.by_size[static_cast<int>(std::bit_width(static_cast<std::uint64_t>(frame.bytes)))];
  ++calls;
  bytes += frame.bytes;
  frame.has_passes = true;
  frame.has_attention = frame.has_attention || key.kind == OperatorKind::Attention;
  if (!frames.empty()) frames.back().take_in(frame);
}

void OperatorTimes::Watch::end(const at::RecordFunction& function, at::ObserverContext*) {
  Watch* const watch = here;
  if (watch == nullptr || watch->frames.empty()) return;
  const std::int64_t end_ns = now_ns();
  const std::int64_t end_faults = faults_of_thread();
  Frame frame = std::move(watch->frames.back());
  watch->frames.pop_back();
  watch->count(function, frame, end_ns, end_faults);
  if (!watch->frames.empty()) {
    watch->frames.back().inner_faults += faults_of_thread() - frame.start_faults;
  }
  const std::int64_t now = now_ns();
  watch->record.watching_ns += (frame.start_ns - frame.begun_ns) + (now - end_ns);
  if (watch->frames.empty()) {
    watch->record.outermost.push_back({.start_ns = frame.begun_ns, .end_ns = now});
  } else {
    watch->frames.back().inner_ns += now - frame.begun_ns;
  }
}

void OperatorTimes::Watch::allocated(std::int64_t ns, std::int64_t faults, std::int64_t times) {
  record.allocations += times;
  record.allocator_ns += ns;
  record.allocator_faults += faults;
  if (frames.empty()) return;
  frames.back().inner_ns += ns;
  frames.back().inner_faults += faults;
}

OperatorTimes::OperatorTimes() : watch_(std::make_unique<Watch>()) {
  PENSTOCK_CHECK(Watch::here == nullptr, "this thread is watched already");
  Watch::here = watch_.get();
  Watch::allocator().add_watch();
  watch_->callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&Watch::begin, &Watch::end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

OperatorTimes::~OperatorTimes() {
  at::removeCallback(watch_->callback);
  Watch::allocator().remove_watch();
  Watch::here = nullptr;
}

OperatorRecord OperatorTimes::take() {
  PENSTOCK_CHECK(watch_->frames.empty(), "an operator runs");
  return std::exchange(watch_->record, {});
}

}  // namespace penstock::probe
