#include "penstock/runtime/nn/callable.h"

#include <c10/util/Exception.h>

#include <string>
#include <string_view>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::nn::callable {
namespace {

template <class T>
bool append_if(Values& values, torch::nn::AnyValue& result) {
  const T* const found = result.try_get<T>();
  if (found != nullptr) append(values, *found);
  return found != nullptr;
}

using Named = torch::OrderedDict<std::string, at::Tensor>;

// Whether `to` has all of `from`, in memory of its own; then with the same values.
bool take_values(const Named& from, const Named& to) {
  for (const auto& each : from) {
    const at::Tensor* const own = to.find(each.key());
    if (own == nullptr || own->sizes() != each.value().sizes()) return false;
    if (own->numel() > 0 && own->is_alias_of(each.value())) return false;
    own->detach().copy_(each.value().detach());
    if (each.value().is_leaf()) own->requires_grad_(each.value().requires_grad());
  }
  return true;
}

}  // namespace

// What modules return whose class torch::nn::AnyModule hides: it tells a type only when asked.
void append(Values& values, torch::nn::AnyValue& result) {
  using Tensor = at::Tensor;
  using Pair = std::tuple<Tensor, Tensor>;
  const bool found = append_if<Tensor>(values, result) || append_if<Pair>(values, result) ||
                     append_if<std::tuple<Tensor, Pair>>(values, result) ||
                     append_if<std::tuple<Tensor, Tensor, Tensor>>(values, result) ||
                     append_if<std::pair<Tensor, Tensor>>(values, result) ||
                     append_if<std::vector<Tensor>>(values, result) ||
                     append_if<Values>(values, result);
  if (found) return;
  throw Error(str("a torch::nn::AnyModule returns ", c10::demangle(result.type_info().name()),
                  ", which is not known to be made of tensors"),
              {"give nn::layer() the module itself"});
}

void refuse_number(const char* what, const std::vector<std::size_t>& possible, std::size_t given) {
  std::vector<std::string> numbers;
  for (const std::size_t number : possible) {
    numbers.push_back(number == 1 ? "one" : str(number));
  }
  const bool is_one = possible.size() == 1 && possible[0] == 1;
  throw Error(str(what, " takes ", join(numbers, " or "), is_one ? " tensor" : " tensors",
                  ", and gets ", given));
}

// clone() of a module that has others inside leaves those without clone() as reset() makes them,
// and lets all parameters require a gradient.
bool become(const torch::nn::Module& module, const torch::nn::Module& copy) {
  return take_values(module.named_parameters(), copy.named_parameters()) &&
         take_values(module.named_buffers(), copy.named_buffers());
}

std::shared_ptr<torch::nn::Module> copied(const std::shared_ptr<torch::nn::Module>& module) {
  if (module == nullptr) {
    throw Error("a layer or a loss is made of a module, and gets a null pointer");
  }
  try {
    std::shared_ptr<torch::nn::Module> copy = module->clone();
    return become(*module, *copy) ? copy : nullptr;
  } catch (const c10::Error& error) {
    const std::string_view why = error.what_without_backtrace();
    if (why.find("clone() has not been implemented") == std::string_view::npos) throw;
    return nullptr;
  }
}

}  // namespace penstock::nn::callable
