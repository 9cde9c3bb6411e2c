// A moment as text that sorts by time and is the same in every time zone.
//
// Events of a run have it.  Reads no clock.
#pragma once
#include <chrono>
#include <string>

namespace penstock {

// ISO 8601 in UTC, with milliseconds: "2026-01-02T03:04:05.678Z".
std::string utc_text(std::chrono::system_clock::time_point moment);

}  // namespace penstock
