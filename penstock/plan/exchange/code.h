// Codes of what is wrong with exchanges: docs/parallelism.md lists them.
//
// A code never changes its meaning, and is never used again.  A text ends in
// its code.
#pragma once
#include <cstdint>
#include <string>

namespace penstock::exchange {

enum class Code : std::uint8_t {
  NoSuchExchange = 1,      // X001: of a value that is not there, or between states
                           // that have none.
  NotExchanged = 2,        // X002: a summand or a candidate that no exchange makes a value.
  OtherState = 3,          // X003: a piece, a layer or the loss takes another state than
                           // it is given.
  NotWhole = 4,            // X004: a value said to be whole is computed of parts, or of summands.
  NotSummed = 5,           // X005: a gradient of which ranks have summands that nobody sums.
  TwoGradients = 6,        // X006: a parameter's gradient is a summand here and whole there.
  NotNamed = 7,            // X007: a piece uses a parameter that its description does not name.
  OtherExchanges = 10,     // X010: ranks that share layers come to different exchanges.
  Circle = 11,             // X011: ranks wait for ever, in exchanges or for messages.
  MessagesInACircle = 12,  // X012: devices wait for ever for each other's messages.
  NoMultiprocessor = 13,   // X013: kernels that wait for messages hold all of a device.
};

// "piece 1 takes partial [X002]".
std::string coded(Code code, const std::string& text);

}  // namespace penstock::exchange
