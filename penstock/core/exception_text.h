// What an exception says, whatever was thrown, in one place for all that is not penstock's own.
//
// Whoever calls a user's code, or another library, and tells of what it threw uses it.  Knows no
// library: a backtrace of addresses is known by its first words.
#pragma once
#include <exception>
#include <string>

namespace penstock {

// what(), without the backtrace in which torch's exceptions end; of an exception that says nothing,
// its type.
std::string exception_text(const std::exception& error);

// The same of what is being handled, which need be no std::exception: "an int, 42".
std::string handled_text();

// Throws: what is being handled, as an Error whose message begins with `where`.  An Error keeps its
// notes, its exit code and, of those in core/error.h that a user's code throws, its type.  The
// original is nested in it.
[[noreturn]] void rethrow_from(const std::string& where);

}  // namespace penstock
