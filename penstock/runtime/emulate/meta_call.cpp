#include "penstock/runtime/emulate/meta_call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/emulate/virtual_device.h"
#include "penstock/runtime/emulate/virtual_memory.h"

namespace penstock::emulate {
namespace {

const c10::DispatchKeySet kVirtualKeys(c10::DispatchKey::CUDA);
const c10::DispatchKeySet kMetaKeys(c10::DispatchKey::Meta);

// Calls `each` with every tensor of a value: one, or a list.
template <class Each>
void for_tensors(const c10::IValue& value, const Each& each) {
  if (value.isTensor()) {
    each(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) each(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) for_tensors(item, each);
  }
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

void set_geometry(const at::Tensor& to, const at::Tensor& from) {
  auto* const impl = to.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
}

// The stand-ins of a call's arguments.
class Metas {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    if (!is_virtual(tensor)) return tensor;
    for (const auto& [original, meta] : tensors_) {
      if (original.is_same(tensor)) return meta;
    }
    auto meta =
        at::detail::make_tensor<c10::TensorImpl>(storage_of(tensor), kMetaKeys, tensor.dtype());
    set_geometry(meta, tensor);
    tensors_.emplace_back(tensor, meta);
    return meta;
  }

  // The tensor of the virtual device that a result stands for, and whether it is new.
  std::pair<at::Tensor, bool> result(const at::Tensor& meta, c10::DeviceIndex device) {
    if (!meta.defined() || !meta.is_meta()) return {meta, false};
    for (const auto& [original, each] : tensors_) {
      if (each.is_same(meta)) return {original, false};
    }
    for (const auto& [original, each] : tensors_) {
      if (each.storage().unsafeGetStorageImpl() != meta.storage().unsafeGetStorageImpl()) continue;
      auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW,
                                                           c10::Storage(original.storage()),
                                                           original.key_set(), meta.dtype());
      set_geometry(view, meta);
      return {view, false};
    }
    return {new_tensor(meta.sizes(), meta.scalar_type(), device, meta.strides()), true};
  }

  // Arguments that the operator has given other sizes have them, and memory for them.
  void take_sizes() const {
    for (const auto& [original, meta] : tensors_) {
      if (original.sizes() != meta.sizes()) original.resize_(meta.sizes());
    }
  }

 private:
  c10::Storage storage_of(const at::Tensor& tensor) {
    const auto* const key = tensor.storage().unsafeGetStorageImpl();
    const auto found = storages_.find(key);
    if (found != storages_.end()) return found->second;
    c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                         c10::DataPtr(nullptr, at::kMeta), c10::GetAllocator(at::kMeta),
                         /*resizable=*/true);
    return storages_.emplace(key, storage).first->second;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::map<const c10::StorageImpl*, c10::Storage> storages_;
};

c10::IValue on_meta(const c10::IValue& value, Metas& metas) {
  if (value.isTensor()) return metas.of(value.toTensor());
  if (value.isDevice() && value.toDevice().type() == kVirtual) return c10::Device(at::kMeta);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(metas.of(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& each : value.toOptionalTensorVector()) {
      list.push_back(each ? std::optional(metas.of(*each)) : std::nullopt);
    }
    return list;
  }
  return value;
}

}  // namespace

Touched touched_by(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  Touched touched;
  const auto& arguments = op.schema().arguments();
  const std::size_t first = stack.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (value.isDevice() && value.toDevice().type() == kVirtual && !touched.device) {
      touched.device = value.toDevice().has_index() ? value.toDevice().index() : current_device();
    }
    for_tensors(value, [&](const at::Tensor& tensor) {
      if (!is_virtual(tensor)) return;
      if (!touched.device) touched.device = tensor.device().index();
      // What is made by out= is only written.
      const bool is_out = arguments[i].is_out();
      if (is_written(arguments[i])) touched.writes.push_back(tensor);
      if (!is_out) touched.reads.push_back(tensor);
    });
  }
  return touched;
}

bool returns_arguments(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const bool is_out = std::ranges::any_of(schema.arguments(), &c10::Argument::is_out);
  return !is_out && std::ranges::any_of(schema.arguments(), is_written) &&
         std::ranges::all_of(schema.returns(), is_written);
}

void return_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& schema = op.schema();
  const std::size_t count = schema.arguments().size(), first = stack.size() - count;
  std::vector<c10::IValue> results;
  for (const c10::Argument& returned : schema.returns()) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto* const alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->beforeSets() == returned.alias_info()->beforeSets()) {
        results.push_back(stack[first + i]);
        break;
      }
    }
  }
  stack.resize(first);
  for (c10::IValue& each : results) stack.push_back(std::move(each));
}

std::vector<at::Tensor> call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                     c10::DeviceIndex device) {
  const std::size_t first = stack.size() - op.schema().arguments().size();
  Metas metas;
  torch::jit::Stack arguments;
  for (std::size_t i = first; i < stack.size(); ++i) arguments.push_back(on_meta(stack[i], metas));
  try {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(arguments);
  } catch (const c10::NotImplementedError&) {
    throw Error(
        str(op.schema().name(), ": the virtual device does not know the shape of its result"),
        {"torch has no kernel of it for \"meta\" tensors"});
  }
  metas.take_sizes();
  std::vector<at::Tensor> made;
  const auto result = [&](const at::Tensor& meta) {
    const auto [tensor, is_new] = metas.result(meta, device);
    if (is_new) made.push_back(tensor);
    return tensor;
  };
  stack.resize(first);
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) {
      stack.emplace_back(result(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorVector()) list.push_back(result(each));
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(value);
    }
  }
  return made;
}

at::Tensor new_tensor(c10::IntArrayRef sizes, at::ScalarType type, c10::DeviceIndex device,
                      std::optional<c10::IntArrayRef> strides) {
  const c10::DeviceGuard guard(c10::Device(kVirtual, device));
  if (!strides) {
    return at::Tensor(
        at::detail::empty_generic(sizes, &virtual_allocator(), kVirtualKeys, type, std::nullopt));
  }
  return at::Tensor(
      at::detail::empty_strided_generic(sizes, *strides, &virtual_allocator(), kVirtualKeys, type));
}

}  // namespace penstock::emulate
