// The text of the error that a call throws.
//
// The config tests compare it whole: wording and place are part of what they promise.
#pragma once
#include <string>

#include "penstock/core/error.h"

namespace penstock::config {

template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace penstock::config
