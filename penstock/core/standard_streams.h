// The standard streams of a program that was started without some of them, as daemons start some.
//
// The first thing that each main() does.  Else a file that is opened later gets the number of a
// stream that is closed: ranks lose it to their standard input, or a library prints into it.
#pragma once

namespace penstock {

// Reading from one that was closed finds its end; writing to it fails, as it would have.
void open_missing_streams();

// Whether what is written to `descriptor` could arrive anywhere.  Async-signal-safe.
bool can_be_written(int descriptor);

}  // namespace penstock
