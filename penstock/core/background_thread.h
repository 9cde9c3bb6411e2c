// A thread that no signal of the process ever interrupts.
//
// Signals are for the program's own threads: they neither end the waits of this one nor run their
// handlers on it.  What it runs may therefore make calls that do not expect EINTR.
#pragma once
#include <functional>
#include <thread>

namespace penstock {

// Throws: ConfigError when the system starts no more threads.
std::thread start_background_thread(std::function<void()> body);

}  // namespace penstock
