// Functions of tensors as users write them, called with Values.
//
// layer.h and loss.h make layers and losses of functions, and of modules, whose function is their
// forward().  Parameters are tensors, by value or reference, or optionals, pairs, tuples and arrays
// of such, also within each other; the last may be all that is left, as Values, a std::vector or a
// TensorList.  Those with a default may be left out.  A result is the like, or a vector of them.
// Values have the tensors flat, in their order; an undefined one is an empty optional.  Of a
// function that is overloaded or a template, parameters are taken for tensors.  Knows no layers.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "penstock/runtime/nn/values.h"

namespace torch::nn {
class AnyModule;
}

namespace penstock::nn::callable {

// The function that a module is.
template <class Module>
struct ForwardOf {
  std::shared_ptr<Module> module;

  template <class... Args, class M = Module>
  auto operator()(Args&&... args)
      -> decltype(std::declval<M&>().forward(std::forward<Args>(args)...)) {
    return module->forward(std::forward<Args>(args)...);
  }
};

// What a function takes, as a std::tuple; void where it does not say.

template <class R, class... Args>
std::type_identity<std::tuple<Args...>> parameters_of(R (*)(Args...));
template <class C, class R, class... Args>
std::type_identity<std::tuple<Args...>> parameters_of(R (C::*)(Args...));
template <class C, class R, class... Args>
std::type_identity<std::tuple<Args...>> parameters_of(R (C::*)(Args...) const);

template <class F>
struct ParametersOf {
  using type = void;
};
template <class F>
  requires requires { parameters_of(&F::operator()); }
struct ParametersOf<F> {
  using type = typename decltype(parameters_of(&F::operator()))::type;
};
template <class R, class... Args>
struct ParametersOf<R (*)(Args...)> {
  using type = std::tuple<Args...>;
};
template <class R, class... Args>
struct ParametersOf<R (*)(Args...) noexcept> {
  using type = std::tuple<Args...>;
};
template <class Module>
  requires requires { parameters_of(&Module::forward); }
struct ParametersOf<ForwardOf<Module>> {
  using type = typename decltype(parameters_of(&Module::forward))::type;
};
template <class F>
using Parameters = typename ParametersOf<F>::type;

// How many tensors a type has.

template <class T>
concept TupleLike = requires { std::tuple_size<T>::value; };
template <class T>
concept Many = std::same_as<T, Values> || std::same_as<T, std::vector<at::Tensor>> ||
               std::same_as<T, at::TensorList>;
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

inline constexpr std::size_t kNoTensors = static_cast<std::size_t>(-1);

// kNoTensors for a type that is not made of tensors alone.
template <class T>
consteval std::size_t tensors_in() {
  if constexpr (std::same_as<T, at::Tensor>) {
    return 1;
  } else if constexpr (kIsOptional<T>) {
    return tensors_in<typename T::value_type>();
  } else if constexpr (TupleLike<T>) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      const bool all = ((tensors_in<std::tuple_element_t<I, T>>() != kNoTensors) && ...);
      return all ? (std::size_t{0} + ... + tensors_in<std::tuple_element_t<I, T>>()) : kNoTensors;
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return kNoTensors;
  }
}

// Arguments from tensors.

struct Cursor {
  const at::Tensor* next;
  const at::Tensor* end;
};

template <class T>
T take(Cursor& from) {
  if constexpr (std::same_as<T, at::Tensor>) {
    return *from.next++;
  } else if constexpr (Many<T>) {
    const at::Tensor* const first = std::exchange(from.next, from.end);
    if constexpr (std::same_as<T, at::TensorList>) {
      return T(first, static_cast<std::size_t>(from.end - first));
    } else {
      return T(first, from.end);
    }
  } else if constexpr (kIsOptional<T>) {
    if (!from.next->defined()) {
      from.next += tensors_in<T>();
      return std::nullopt;
    }
    return take<typename T::value_type>(from);
  } else {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return T{take<std::tuple_element_t<I, T>>(from)...};  // Braces: in their order.
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  }
}

// An argument while the function runs, made of the tensors that come next.
template <class Parameter>
struct Argument {
  using Type = std::remove_cvref_t<Parameter>;

  explicit Argument(Cursor& from) : value(take<Type>(from)) {}
  Parameter&& pass() { return static_cast<Parameter&&>(value); }

  Type value;
};
template <>
struct Argument<const at::Tensor&> {
  explicit Argument(Cursor& from) : value(*from.next++) {}
  const at::Tensor& pass() { return value; }

  const at::Tensor& value;
};
struct AllOfThem {
  const Values& pass() { return values; }

  const Values& values;
};

// The argument that is made of all tensors that there are.
template <class Parameter>
auto argument_of(const Values& all) {
  if constexpr (std::convertible_to<const Values&, Parameter>) {
    return AllOfThem{all};
  } else {
    Cursor from{all.data(), all.data() + all.size()};
    return Argument<Parameter>(from);
  }
}

// Calls that a function takes.

template <class List, std::size_t I>
using Parameter = std::tuple_element_t<I, List>;

template <class List, std::size_t I>
inline constexpr std::size_t kTensors = tensors_in<std::remove_cvref_t<Parameter<List, I>>>();
template <class List, std::size_t I>
inline constexpr bool kIsMany = Many<std::remove_cvref_t<Parameter<List, I>>>;

// Whether `F` is called with its first parameters, and these are made of tensors.
template <class F, class List, std::size_t... I>
consteval bool takes_first(std::index_sequence<I...>) {
  constexpr bool kFromTensors =
      ((kTensors<List, I> != kNoTensors || (kIsMany<List, I> && I + 1 == sizeof...(I))) && ...);
  if constexpr (kFromTensors && std::invocable<F&, Parameter<List, I>...>) {
    return !std::is_void_v<std::invoke_result_t<F&, Parameter<List, I>...>>;
  } else {
    return false;
  }
}
template <class F, std::size_t Count>
consteval bool takes_first() {
  if constexpr (std::is_void_v<Parameters<F>>) {
    return false;
  } else if constexpr (Count == 0 || Count > std::tuple_size_v<Parameters<F>>) {
    return false;
  } else {
    return takes_first<F, Parameters<F>>(std::make_index_sequence<Count>());
  }
}

inline constexpr std::size_t kMostUnsaid = 4;  // Tensors of a function that does not say how many.

template <class F, std::size_t... I>
consteval bool takes_tensors(std::index_sequence<I...>) {
  return std::invocable<F&, decltype((static_cast<void>(I), std::declval<at::Tensor&>()))...>;
}

template <class F>
consteval std::size_t most_parameters() {
  if constexpr (std::is_void_v<Parameters<F>>) {
    return kMostUnsaid;
  } else {
    return std::tuple_size_v<Parameters<F>>;
  }
}

template <class F>
consteval bool takes_tensors() {
  return []<std::size_t... N>(std::index_sequence<N...>) {
    if constexpr (std::is_void_v<Parameters<F>>) {
      return (takes_tensors<F>(std::make_index_sequence<N + 1>()) || ...);
    } else {
      return (takes_first<F, N + 1>() || ...);
    }
  }(std::make_index_sequence<most_parameters<F>()>());
}

// A function that does not say what it takes, and takes no tensors, may take Values.
template <class F>
consteval bool takes_values() {
  if constexpr (!std::is_void_v<Parameters<F>> || takes_tensors<F>()) {
    return false;
  } else {
    return std::invocable<F&, const Values&>;
  }
}
template <class F>
concept OfTensors = takes_tensors<F>() || takes_values<F>();

// Results as Values.

void append(Values& values, torch::nn::AnyValue& result);
template <class T>
concept Range = requires(const T& range) {
  range.begin();
  range.end();
};
template <class T>
consteval bool is_result() {
  if constexpr (std::convertible_to<T, at::Tensor> || std::same_as<T, torch::nn::AnyValue>) {
    return true;
  } else if constexpr (kIsOptional<T>) {
    return is_result<typename T::value_type>();
  } else if constexpr (TupleLike<T>) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (is_result<std::remove_cvref_t<std::tuple_element_t<I, T>>>() && ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (Range<T>) {
    return is_result<std::remove_cvref_t<decltype(*std::declval<const T&>().begin())>>();
  } else {
    return false;
  }
}

template <class T>
void append(Values& values, const T& result) {
  if constexpr (std::convertible_to<T, at::Tensor>) {
    values.push_back(result);
  } else if constexpr (kIsOptional<T>) {
    if (result) {
      append(values, *result);
    } else {
      values.resize(values.size() + tensors_in<T>());
    }
  } else if constexpr (TupleLike<T>) {
    std::apply([&](const auto&... each) { (append(values, each), ...); }, result);
  } else {
    for (const auto& each : result) append(values, each);
  }
}

template <class Result, class T>
Result result_of(T&& result) {
  using Type = std::remove_cvref_t<T>;
  constexpr bool kFits =
      std::convertible_to<T, Result> || (std::same_as<Result, Values> && is_result<Type>());
  static_assert(kFits,
                "penstock: a layer returns a tensor, or optionals, pairs, tuples, arrays or "
                "vectors of tensors, also within each other; a loss returns one tensor");
  if constexpr (std::convertible_to<T, Result>) {
    return std::forward<T>(result);
  } else {
    Result values;
    if constexpr (kFits) append(values, result);
    return values;
  }
}

// Throws: Error, "`what` takes 3 or 4 tensors, and gets 1".
[[noreturn]] void refuse_number(const char* what, const std::vector<std::size_t>& possible,
                                std::size_t given);

template <class Result, class F, std::size_t... I>
Result call_first(F& function, const Values& inputs, std::index_sequence<I...>) {
  using List = Parameters<F>;
  if constexpr (sizeof...(I) == 1) {
    auto argument = argument_of<Parameter<List, 0>>(inputs);
    return result_of<Result>(function(argument.pass()));
  } else {
    Cursor from{inputs.data(), inputs.data() + inputs.size()};
    std::tuple<Argument<Parameter<List, I>>...> arguments{Argument<Parameter<List, I>>(from)...};
    return result_of<Result>(function(std::get<I>(arguments).pass()...));
  }
}

template <class Result, class F, std::size_t... I>
Result call_with_tensors(F& function, const Values& inputs, std::index_sequence<I...>) {
  Values own = inputs;  // It may take them by reference.
  return result_of<Result>(function(own[I]...));
}

// Whether the first parameters take so many tensors; then calls it.
template <class Result, class F, std::size_t Count>
bool call_if(F& function, const Values& inputs, std::optional<Result>& result,
             std::vector<std::size_t>* possible) {
  constexpr auto kFirst = std::make_index_sequence<Count>();
  if constexpr (std::is_void_v<Parameters<F>>) {
    if constexpr (takes_tensors<F>(kFirst)) {
      if (possible != nullptr) possible->push_back(Count);
      if (inputs.size() != Count) return false;
      result.emplace(call_with_tensors<Result>(function, inputs, kFirst));
      return true;
    }
  } else if constexpr (takes_first<F, Count>()) {
    using List = Parameters<F>;
    constexpr bool kTakesTheRest = kIsMany<List, Count - 1>;
    constexpr std::size_t kSum = []<std::size_t... I>(std::index_sequence<I...>) {
      return (std::size_t{0} + ... + (kIsMany<List, I> ? 0 : kTensors<List, I>));
    }(kFirst);
    if (possible != nullptr) possible->push_back(kSum);
    if (kTakesTheRest ? inputs.size() < kSum : inputs.size() != kSum) return false;
    result.emplace(call_first<Result>(function, inputs, kFirst));
    return true;
  }
  return false;
}

// Calls it with as many tensors as there are.
// Throws: Error where it takes another number.
template <class Result, OfTensors F>
Result call(F& function, const Values& inputs, const char* what) {
  if constexpr (takes_values<F>()) return result_of<Result>(function(inputs));
  std::optional<Result> result;
  const auto try_all = [&]<std::size_t... N>(std::vector<std::size_t>* possible,
                                             std::index_sequence<N...>) {
    return (call_if<Result, F, N + 1>(function, inputs, result, possible) || ...);
  };
  constexpr auto kAll = std::make_index_sequence<most_parameters<F>()>();
  if (try_all(nullptr, kAll)) return *std::move(result);
  std::vector<std::size_t> possible;
  try_all(&possible, kAll);
  refuse_number(what, possible, inputs.size());
}

// A function without parameters.
template <class F>
concept Maker = std::invocable<F&> && !std::is_void_v<std::invoke_result_t<F&>>;

// Modules in any form in which users have them: a module, a pointer to one that owns it, a
// ModuleHolder such as torch::nn::Linear, and torch::nn::AnyModule.

template <class T>
concept Holder = requires { typename T::ContainedType; };
template <class T>
concept Pointer = requires(const T& pointer) {
  typename T::element_type;
  requires std::derived_from<typename T::element_type, torch::nn::Module>;
  requires std::convertible_to<T&&, std::shared_ptr<typename T::element_type>>;
};
template <class T>
concept AModule = Holder<T> || Pointer<T> || std::derived_from<T, torch::nn::Module> ||
                  std::same_as<T, torch::nn::AnyModule>;

// Whether a class of modules, or a holder's, has a constructor of these arguments.
template <class Module, class... Args>
consteval bool makes() {
  if constexpr (Holder<Module>) {
    return std::constructible_from<typename Module::ContainedType, const Args&...>;
  } else {
    return std::derived_from<Module, torch::nn::Module> &&
           std::constructible_from<Module, const Args&...>;
  }
}
template <class Module, class... Args>
concept Makes = makes<Module, Args...>();

template <class Module, class... Args>
  requires Makes<Module, Args...>
auto made(const Args&... args) {
  if constexpr (Holder<Module>) {
    return Module(args...);
  } else {
    return std::make_shared<Module>(args...);
  }
}

// Makes a handle of a module: what can be copied and is one module all the same, a std::shared_ptr
// or an AnyModule.
template <AModule T>
auto handle_of(T module) {
  if constexpr (Holder<T>) {
    return module.ptr();
  } else if constexpr (Pointer<T>) {
    return std::shared_ptr<typename T::element_type>(std::move(module));
  } else if constexpr (std::same_as<T, torch::nn::AnyModule>) {
    return module;
  } else {
    return std::make_shared<T>(std::move(module));
  }
}

template <class Module>
std::shared_ptr<torch::nn::Module> module_of(const std::shared_ptr<Module>& handle) {
  return handle;
}
template <std::same_as<torch::nn::AnyModule> Any>
std::shared_ptr<torch::nn::Module> module_of(const Any& handle) {
  return handle.is_empty() ? nullptr : handle.ptr();
}

template <class Module>
ForwardOf<Module> function_of(std::shared_ptr<Module> handle) {
  return {std::move(handle)};
}
template <std::same_as<torch::nn::AnyModule> Any>
auto function_of(Any handle) {
  return [module = std::move(handle)]<class... Args>(Args&&... args) mutable {
    return module.any_forward(std::forward<Args>(args)...);
  };
}

// Whether `copy` is one of `module`, with parameters and buffers in memory of its own, which then
// have the same values, and are frozen likewise.
bool become(const torch::nn::Module& module, const torch::nn::Module& copy);
// A copy by clone(), or null, where its class does not derive from torch::nn::Cloneable.
// Throws: Error for a null pointer.
std::shared_ptr<torch::nn::Module> copied(const std::shared_ptr<torch::nn::Module>& module);

// A copy, or the module itself where there is none.
template <class Handle>
Handle copy_of(const Handle& handle) {
  const std::shared_ptr<torch::nn::Module> copy = copied(module_of(handle));
  if (copy == nullptr) return handle;
  if constexpr (std::same_as<Handle, torch::nn::AnyModule>) {
    const Handle other = handle.clone();
    become(*copy, *other.ptr());
    return other;
  } else {
    return std::dynamic_pointer_cast<typename Handle::element_type>(copy);
  }
}

// A pointer to a function knows no defaults: what follows its tensors and is a class of options
// gets its own, as of torch::nn::functional's.  Other things are themselves.

template <class T>
concept Options = std::is_class_v<T> && std::default_initializable<T> && !Many<T> &&
                  tensors_in<T>() == kNoTensors && !std::convertible_to<double, T> &&
                  !std::convertible_to<const char*, T>;

template <class F>
F with_default_options(F function) {
  return function;
}
template <class R, class... Args>
  requires(!OfTensors<R (*)(Args...)>)
auto with_default_options(R (*function)(Args...)) {
  using List = std::tuple<Args...>;
  static constexpr std::size_t kOptions =
      (std::size_t{0} + ... + Options<std::remove_cvref_t<Args>>);
  static constexpr std::size_t kFirst = sizeof...(Args) - kOptions;
  return [&]<std::size_t... T, std::size_t... O>(std::index_sequence<T...>,
                                                 std::index_sequence<O...>) {
    if constexpr (kOptions > 0 && ((kTensors<List, T> == 1) && ...) &&
                  (Options<std::remove_cvref_t<Parameter<List, kFirst + O>>> && ...)) {
      return [function](Parameter<List, T>... tensors) {
        return function(tensors..., std::remove_cvref_t<Parameter<List, kFirst + O>>()...);
      };
    } else {
      return function;
    }
  }(std::make_index_sequence<kFirst>(), std::make_index_sequence<kOptions>());
}

}  // namespace penstock::nn::callable
