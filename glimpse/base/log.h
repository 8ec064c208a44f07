// Notes and warnings for the person at the terminal; never results. The library hands each line to one sink,
// which the program sets (none by default: the library never prints). Any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace glimpse {

enum class LogLevel { debug, info, warning };

/// Replaces the sink; an empty function silences. Call before threads start.
void set_log_sink(std::function<void(LogLevel, std::string_view)> sink);
/// A sink that writes to standard error through spdlog, from `least` on.
void log_to_stderr(LogLevel least);
void log_message(LogLevel level, std::string_view text);

}  // namespace glimpse
