#include "penstock/core/exception_text.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock {
namespace {

// What torch puts behind the words of an exception.
constexpr std::string_view kBacktrace = "\nException raised from ";

std::string name_of(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : type.name();
}

template <class Kind>
[[noreturn]] void nest(const std::string& where, const Kind& error) {
  const std::string message = str(where, ": ", error.message());
  if constexpr (std::is_constructible_v<Kind, std::string, std::vector<std::string>, ExitCode>) {
    std::throw_with_nested(Kind(message, error.notes(), error.exit_code()));
  } else {
    std::throw_with_nested(Kind(message, error.notes()));
  }
}

template <class Value>
std::string of_value(const char* type, const Value& value) {
  return str(type, ", ", value);
}

}  // namespace

std::string exception_text(const std::exception& error) {
  const std::string_view text = error.what();
  const std::string_view words = text.substr(0, text.find(kBacktrace));
  return words.empty() ? str("an exception of type ", name_of(typeid(error))) : std::string(words);
}

std::string handled_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return exception_text(error);
  } catch (const std::string& text) {
    return text;
  } catch (const char* text) {
    return text == nullptr ? "a null pointer" : text;
  } catch (int value) {
    return of_value("an int", value);
  } catch (long value) {
    return of_value("a long", value);
  } catch (double value) {
    return of_value("a double", value);
  } catch (...) {
    const std::type_info* const type = abi::__cxa_current_exception_type();
    return type == nullptr ? "an exception of another language"
                           : str("an exception of type ", name_of(*type));
  }
}

void rethrow_from(const std::string& where) {
  try {
    throw;
  } catch (const CommError& error) {
    nest(where, error);
  } catch (const ConfigError& error) {
    nest(where, error);
  } catch (const CheckpointError& error) {
    nest(where, error);
  } catch (const NumericsError& error) {
    nest(where, error);
  } catch (const Error& error) {
    nest(where, error);
  } catch (...) {
    std::throw_with_nested(Error(str(where, ": ", handled_text())));
  }
}

}  // namespace penstock
