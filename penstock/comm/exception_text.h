// What an exception says, in one place for torch's and all others.
//
// Whoever tells a user of an exception that penstock did not make uses it.
#pragma once
#include <exception>
#include <string>

namespace penstock::comm {

// what(), of torch's exceptions without the backtrace of addresses that it ends in.
std::string exception_text(const std::exception& error);

}  // namespace penstock::comm
