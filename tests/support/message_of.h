// The text of the error that a call throws.
//
// Tests of what reads users' texts compare it whole: wording and place are part of the promise.
#pragma once
#include <string>

#include "penstock/core/error.h"

namespace penstock::testing_support {

template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace penstock::testing_support
