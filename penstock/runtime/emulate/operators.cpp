#include "penstock/runtime/emulate/operators.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/emulate/meta_call.h"
#include "penstock/runtime/emulate/prices.h"
#include "penstock/runtime/emulate/virtual_device.h"
#include "penstock/runtime/emulate/virtual_memory.h"
#include "penstock/runtime/nn/passes/passes.h"

namespace penstock::emulate {
namespace {

using c10::OperatorHandle;
using torch::jit::Stack;

// Kernels of attention, as torch numbers them.
enum class Attention : std::int64_t { Plain = 0, Flash = 1, Efficient = 2 };

void charge(c10::DeviceIndex device, const Kernel& kernel) {
  check_goes_on();
  rank_of(device).launch(current_stream(device), kernel);
}

void charge(c10::DeviceIndex device, const std::string& name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes) {
  const bool is_processor = rank_of(device).device().is_processor;
  charge(device, (is_processor ? processor_kernel_of : kernel_of)(name, reads, writes));
}

void own(const std::vector<at::Tensor>& tensors, const std::string& name) {
  for (const at::Tensor& each : tensors) own_memory(each.storage().data_ptr(), name);
}

const c10::IValue& value(const OperatorHandle& op, const Stack& stack, std::size_t i) {
  return stack[stack.size() - op.schema().arguments().size() + i];
}
at::Tensor tensor(const OperatorHandle& op, const Stack& stack, std::size_t i) {
  return value(op, stack, i).toTensor();
}

// Replaces the arguments by results.
void give(const OperatorHandle& op, Stack& stack, std::vector<c10::IValue> results) {
  stack.resize(stack.size() - op.schema().arguments().size());
  for (c10::IValue& each : results) stack.push_back(std::move(each));
}

// The end of a kernel that has read some tensors and written others; the first one read, or
// written, says where it ran.
void finish(const OperatorHandle& op, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes) {
  const c10::DeviceIndex device = (reads.empty() ? writes : reads).front().device().index();
  own(writes, op.schema().name());
  charge(device, op.schema().name(), reads, writes);
}

at::Tensor like(const at::Tensor& tensor) {
  return new_tensor(tensor.sizes(), tensor.scalar_type(), tensor.device().index());
}

// Any operator.
void on_virtual(const OperatorHandle& op, Stack* stack) {
  const std::string& name = op.schema().name();
  if (op.hasTag(at::Tag::inplace_view)) throw Error(str(name, ": not on a virtual device"));
  Touched touched = touched_by(op, *stack);
  const c10::DeviceIndex device = touched.device.value_or(current_device());
  const c10::DeviceGuard guard(c10::Device(kVirtual, device));
  std::vector<at::Tensor> made;
  if (returns_arguments(op)) {
    return_arguments(op, *stack);
  } else {
    made = call_on_meta(op, *stack, device);
  }
  const bool is_view = made.empty() && touched.writes.empty();
  if (is_view) return;
  touched.writes.insert(touched.writes.end(), made.begin(), made.end());
  own(touched.writes, name);
  charge(device, name, touched.reads, touched.writes);
}

// What has the shape of its argument, and no kernel for meta tensors.
void as_argument(const OperatorHandle& op, Stack* stack) {
  const at::Tensor from = tensor(op, *stack, 0), made = like(from);
  finish(op, {from}, {made});
  give(op, *stack, {made});
}

// Element by element into out=, without a kernel for meta tensors.
void into_out(const OperatorHandle& op, Stack* stack) {
  const std::size_t last = op.schema().arguments().size() - 1;
  std::vector<std::int64_t> sizes;
  std::vector<at::Tensor> reads;
  for (std::size_t i = 0; i < last; ++i) {
    reads.push_back(tensor(op, *stack, i));
    sizes = at::infer_size(sizes, reads.back().sizes());
  }
  const at::Tensor out = tensor(op, *stack, last);
  if (out.sizes() != at::IntArrayRef(sizes)) out.resize_(sizes);
  finish(op, reads, {out});
  give(op, *stack, {out});
}

// Chooses between two tensors of one type.
void where(const OperatorHandle& op, Stack* stack) {
  const at::Tensor condition = tensor(op, *stack, 0), a = tensor(op, *stack, 1),
                   b = tensor(op, *stack, 2);
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), a.sizes()), b.sizes());
  const at::Tensor made = new_tensor(sizes, at::result_type(a, b), condition.device().index());
  finish(op, {condition, a, b}, {made});
  give(op, *stack, {made});
}

void embedding_backward(const OperatorHandle& op, Stack* stack) {
  const at::Tensor gradient = tensor(op, *stack, 0), indices = tensor(op, *stack, 1);
  const at::Tensor made = new_tensor({value(op, *stack, 2).toInt(), gradient.size(-1)},
                                     gradient.scalar_type(), gradient.device().index());
  finish(op, {gradient, indices}, {made});
  give(op, *stack, {made});
}

void index_select(const OperatorHandle& op, Stack* stack) {
  const at::Tensor table = tensor(op, *stack, 0), index = tensor(op, *stack, 2);
  const std::int64_t dimension = c10::maybe_wrap_dim(value(op, *stack, 1).toInt(), table.dim());
  std::vector<std::int64_t> sizes = table.sizes().vec();
  sizes[static_cast<std::size_t>(dimension)] = index.numel();
  const at::Tensor made = new_tensor(sizes, table.scalar_type(), table.device().index());
  finish(op, {table, index}, {made});
  give(op, *stack, {made});
}

// A norm over the last dimension: its output, and `kept` numbers a row for the backward.
void norm(const OperatorHandle& op, Stack* stack, std::size_t kept) {
  const at::Tensor input = tensor(op, *stack, 0);
  std::vector<std::int64_t> rows = input.sizes().vec();
  rows.back() = 1;
  std::vector<at::Tensor> made = {like(input)};
  for (std::size_t i = 0; i < kept; ++i) {
    made.push_back(new_tensor(rows, at::kFloat, input.device().index()));
  }
  finish(op, {input}, made);
  give(op, *stack, {made.begin(), made.end()});
}
void rms_norm(const OperatorHandle& op, Stack* stack) { norm(op, stack, 1); }
void layer_norm(const OperatorHandle& op, Stack* stack) { norm(op, stack, 2); }

// The gradients that its last argument asks for: of the input, and of what begins at `weight`.
void norm_backward(const OperatorHandle& op, Stack* stack, std::size_t weight) {
  const at::Tensor gradient = tensor(op, *stack, 0), input = tensor(op, *stack, 1);
  const auto wanted = stack->back().toBoolList().vec();
  std::vector<c10::IValue> results;
  std::vector<at::Tensor> made;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    results.emplace_back(at::Tensor());
    if (!wanted[i]) continue;
    made.push_back(like(i == 0 ? input : tensor(op, *stack, weight + i - 1)));
    results.back() = made.back();
  }
  finish(op, {gradient, input}, made);
  give(op, *stack, std::move(results));
}
void rms_norm_backward(const OperatorHandle& op, Stack* stack) { norm_backward(op, stack, 4); }
void layer_norm_backward(const OperatorHandle& op, Stack* stack) { norm_backward(op, stack, 5); }

// A product for each element on the side that has the weight's first dimension.
void charge_convolution(c10::DeviceIndex device, const at::Tensor& side, const at::Tensor& weight) {
  const bool is_short = at::isReducedFloatingType(weight.scalar_type());
  charge(device, {.kind = is_short ? KernelKind::ShortProduct : KernelKind::Product,
                  .amount = 2 * side.numel() * (weight.numel() / weight.size(0))});
}

void convolution(const OperatorHandle& op, Stack* stack) {
  const at::Tensor input = tensor(op, *stack, 0), weight = tensor(op, *stack, 1);
  const auto numbers = [&](std::size_t i) { return value(op, *stack, i).toIntVector(); };
  const bool is_transposed = value(op, *stack, 6).toBool();
  const auto sizes =
      is_transposed
          ? at::native::conv_input_size(input.sizes(), weight.sizes(), numbers(4), numbers(7),
                                        numbers(3), numbers(5), value(op, *stack, 8).toInt())
          : at::native::conv_output_size(input.sizes(), weight.sizes(), numbers(4), numbers(3),
                                         numbers(5));
  const c10::DeviceIndex device = input.device().index();
  const at::Tensor made = new_tensor(sizes, input.scalar_type(), device);
  own({made}, op.schema().name());
  charge_convolution(device, is_transposed ? input : made, weight);
  give(op, *stack, {made});
}

// The gradients that its last argument asks for: of the input, the weight and the bias.
void convolution_backward(const OperatorHandle& op, Stack* stack) {
  const at::Tensor gradient = tensor(op, *stack, 0), input = tensor(op, *stack, 1),
                   weight = tensor(op, *stack, 2);
  const bool is_transposed = value(op, *stack, 7).toBool();
  const auto wanted = stack->back().toBoolList().vec();
  const c10::DeviceIndex device = input.device().index();
  std::vector<c10::IValue> results(wanted.size(), at::Tensor());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    const bool is_of_bias = i == 2;
    const at::Tensor made = is_of_bias
                                ? new_tensor({gradient.size(1)}, gradient.scalar_type(), device)
                                : like(i == 0 ? input : weight);
    results[i] = made;
    if (is_of_bias) {
      finish(op, {gradient}, {made});
    } else {
      own({made}, op.schema().name());
      charge_convolution(device, is_transposed ? input : gradient, weight);
    }
  }
  give(op, *stack, std::move(results));
}

void depends_on_values(const OperatorHandle& op, Stack*) {
  throw Error(str(op.schema().name(),
                  ": the shape of its result depends on values, and a virtual device has none"),
              {"a mask in place of an index keeps shapes"});
}

// [batch, heads, tokens, width] as attention's kernels leave it: dense by tokens.
at::Tensor like_heads(const at::Tensor& heads) {
  const at::Tensor made = new_tensor({heads.size(0), heads.size(2), heads.size(1), heads.size(3)},
                                     heads.scalar_type(), heads.device().index());
  own({made}, "attention");
  return made.transpose(1, 2);
}

void charge_attention(const OperatorHandle& op, const Stack& stack, std::size_t queries,
                      bool is_backward) {
  const auto is_causal = static_cast<std::size_t>(*op.schema().argumentIndexWithName("is_causal"));
  const at::Tensor of = tensor(op, stack, queries), keys = tensor(op, stack, queries + 1);
  const c10::DeviceIndex device = of.device().index();
  charge(device, kernel_of_attention(of, keys, value(op, stack, is_causal).toBool(), is_backward));
}

void attention(const OperatorHandle& op, Stack* stack) {
  const at::Tensor queries = tensor(op, *stack, 0), keys = tensor(op, *stack, 1);
  charge_attention(op, *stack, /*queries=*/0, /*is_backward=*/false);
  const at::Tensor sums = new_tensor({queries.size(0), queries.size(1), queries.size(2)},
                                     at::kFloat, queries.device().index());
  own({sums}, "attention");
  std::vector<c10::IValue> results = {like_heads(queries), sums};
  // What follows is of dropout and of lengths: random states, and numbers.
  for (std::size_t i = 2; i < op.schema().returns().size(); ++i) {
    const bool is_number = op.schema().returns()[i].type()->kind() != c10::TypeKind::TensorType;
    if (is_number) {
      results.emplace_back(i == 4 ? queries.size(2) : keys.size(2));
    } else {
      results.emplace_back(at::Tensor());
    }
  }
  give(op, *stack, std::move(results));
}

void attention_backward(const OperatorHandle& op, Stack* stack) {
  charge_attention(op, *stack, /*queries=*/1, /*is_backward=*/true);
  std::vector<c10::IValue> results;
  for (std::size_t i = 1; i <= 3; ++i) results.emplace_back(like_heads(tensor(op, *stack, i)));
  results.resize(op.schema().returns().size(), at::Tensor());
  give(op, *stack, std::move(results));
}

// Chooses the kernel that torch has for CUDA: flash for short types without a mask, else the one
// that takes any type and mask, but no groups of heads.
std::int64_t choose_attention(const at::Tensor& queries, const at::Tensor& /*keys*/,
                              const at::Tensor& /*values*/, const std::optional<at::Tensor>& mask,
                              double /*dropout*/, bool /*is_causal*/,
                              std::optional<double> /*scale*/, bool is_grouped) {
  const bool has_flash = at::isReducedFloatingType(queries.scalar_type()) && !mask.has_value() &&
                         queries.size(-1) <= 256;
  const Attention kernel = has_flash    ? Attention::Flash
                           : is_grouped ? Attention::Plain
                                        : Attention::Efficient;
  return static_cast<std::int64_t>(kernel);
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat>) {
  const bool has_index = device && device->has_index();
  return new_tensor(size, type.value_or(at::kFloat),
                    has_index ? device->index() : current_device());
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const bool has_index = device && device->has_index();
  return new_tensor(size, type.value_or(at::kFloat), has_index ? device->index() : current_device(),
                    stride);
}

// Copies nothing.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool /*non_blocking*/) {
  if (to.device() == from.device() || (!to.is_cpu() && !from.is_cpu())) {
    const c10::DeviceIndex device = to.device().index();
    own({to}, "aten::copy_");
    charge(device, "aten::copy_", {from}, {to});
  } else if (to.is_cpu()) {
    const double value = value_for_layers("aten::copy_").value_or(0.0);
    rank_of(from.device().index()).copy_out(static_cast<std::int64_t>(from.nbytes()));
    to.fill_(value);
  } else {
    own({to}, "aten::copy_");
    rank_of(to.device().index()).copy_in(static_cast<std::int64_t>(to.nbytes()));
  }
  return to;
}

// Numbers that the host reads are 1, so that it may divide by them; truths are false.
at::Scalar read_scalar(const at::Tensor& tensor) {
  const ValueRead value = value_for_layers("aten::_local_scalar_dense");
  rank_of(tensor.device().index()).read_scalar();
  const bool is_truth = tensor.scalar_type() == at::kBool;
  if (value) return is_truth ? at::Scalar(*value != 0) : at::Scalar(*value);
  return is_truth ? at::Scalar(false) : at::Scalar(1);
}

// Fresh memory where it grows: there is nothing to copy.
const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const auto bytes =
      static_cast<std::size_t>(self.storage_offset() + self.numel()) * self.element_size();
  auto* const storage = self.storage().unsafeGetStorageImpl();
  if (storage->nbytes() >= bytes) return self;
  const c10::DeviceGuard guard(self.device());
  storage->set_data_ptr_noswap(virtual_allocator().allocate(bytes));
  storage->set_nbytes(bytes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, std::int64_t offset,
                        c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}

template <void (*kernel)(const OperatorHandle&, Stack*)>
torch::CppFunction boxed() {
  return torch::CppFunction::makeFromBoxedFunction<kernel>();
}

// torch has a kernel for the CPU and takes them apart on devices that it does not know; CUDA has a
// kernel for each.
void keep_whole(torch::Library& library, const std::vector<std::string>& ours) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!std::string_view(name.name).starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    const bool is_taken_apart =
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
    const std::string whole = toString(name).substr(std::strlen("aten::"));
    if (!is_taken_apart || std::ranges::find(ours, whole) != ours.end()) continue;
    library.impl(whole.c_str(), boxed<&on_virtual>());
  }
}

}  // namespace

void charge_pass(std::string_view pass, const std::vector<at::Tensor>& reads,
                 const std::vector<at::Tensor>& writes) {
  const std::string name(pass);
  own(writes, name);
  const c10::DeviceIndex device = reads.front().device().index();
  if (name == nn::passes::kAttention) {
    charge(device,
           kernel_of_attention(reads[0], reads[1], /*is_causal=*/true, /*is_backward=*/false));
  } else if (name == nn::passes::kAttentionGradient) {
    charge(device,
           kernel_of_attention(reads[1], reads[2], /*is_causal=*/true, /*is_backward=*/true));
  } else {
    charge(device, name, reads, writes);
  }
}

void install_operators() {
  using torch::Library;
  static auto* const rest =
      new Library(Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  rest->fallback(boxed<&on_virtual>());
  static auto* const library =
      new Library(Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  std::vector<std::string> ours;
  const auto impl = [&](const char* name, auto&& kernel) {
    library->impl(name, std::forward<decltype(kernel)>(kernel));
    ours.emplace_back(name);
  };
  impl("empty.memory_format", &empty);
  impl("empty_strided", &empty_strided);
  impl("copy_", &copy);
  impl("_local_scalar_dense", &read_scalar);
  impl("as_strided", &at::native::as_strided_tensorimpl);
  impl("view", &at::native::view);
  impl("_reshape_alias", &at::native::_reshape_alias);
  impl("resize_", &resize);
  impl("set_.source_Storage_storage_offset", &set_storage);
  for (const char* name :
       {"logical_and.out", "logical_or.out", "logical_xor.out", "logical_not.out", "abs.out"}) {
    impl(name, boxed<&into_out>());
  }
  impl("relu", boxed<&as_argument>());
  impl("where.self", boxed<&where>());
  impl("embedding_dense_backward", boxed<&embedding_backward>());
  impl("index_select", boxed<&index_select>());
  impl("_fused_rms_norm", boxed<&rms_norm>());
  impl("_fused_rms_norm_backward", boxed<&rms_norm_backward>());
  impl("native_layer_norm", boxed<&layer_norm>());
  impl("native_layer_norm_backward", boxed<&layer_norm_backward>());
  impl("convolution", boxed<&convolution>());
  impl("convolution_backward", boxed<&convolution_backward>());
  for (const char* name :
       {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}) {
    impl(name, boxed<&depends_on_values>());
  }
  for (const char* name :
       {"_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"}) {
    impl(name, boxed<&attention>());
    impl(str(name, "_backward").c_str(), boxed<&attention_backward>());
  }
  impl("_fused_sdp_choice", &choose_attention);
  keep_whole(*library, ours);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
}

}  // namespace penstock::emulate
