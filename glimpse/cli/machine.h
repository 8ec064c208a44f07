// What a report says about the program and the machine. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace glimpse::cli {

/// "glimpse 0.1.0 (commit)".
std::string_view version_text();
/// `git describe` of the sources when they were built, or "unknown".
std::string_view commit();
/// The processor's name, or its architecture where the system does not tell.
std::string cpu_name();
/// A processor's name as profiles have it: at most 128 characters, printable ASCII.
std::string profile_name(std::string name);
std::string profile_cpu_name();
/// Physical cores that the process may use.
int cpu_cores();

}  // namespace glimpse::cli
