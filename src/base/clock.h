// Times as plain seconds, which is how reports, metrics and JSON have them.
#pragma once

#include <chrono>

namespace quire {

using Clock = std::chrono::steady_clock;

inline double seconds(std::chrono::duration<double> duration) { return duration.count(); }
inline double seconds_since(Clock::time_point begin) { return seconds(Clock::now() - begin); }
// Of a clock that starts anywhere and never jumps.
inline double steady_now() { return seconds(Clock::now().time_since_epoch()); }
// Unix time.
inline double unix_now() { return seconds(std::chrono::system_clock::now().time_since_epoch()); }

}  // namespace quire
