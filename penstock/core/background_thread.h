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

// The same, for a thread that nobody joins.  It begins detached: pthread_detach() of glibc 2.36
// looks at a thread once more after that may have ended, and then ends the one that has its memory.
void start_detached_thread(std::function<void()> body);

}  // namespace penstock
