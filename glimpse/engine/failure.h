// What was thrown, as a text for people and as ours or theirs. Pure functions; any thread. Inside engine only.
#pragma once

#include <exception>
#include <string>

namespace glimpse::engine {

/// The text of any exception; "out of memory" alone where there is none for more.
std::string text_of(const std::exception_ptr& why) noexcept;
/// True for one that what a request asks for is the cause of.
bool is_requests_own(const std::exception_ptr& why);
/// True for one that only a mistake of ours can throw.
bool is_bug(const std::exception_ptr& why);

}  // namespace glimpse::engine
