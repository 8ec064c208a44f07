// Runs a call that recurses deeply on a thread with a stack of its own. Any thread.
#pragma once

#include <cstddef>
#include <functional>

namespace glimpse::text {

/// Runs `work` with `bytes` of stack and waits for it; what it throws is thrown here. Address space alone is taken
/// before pages are touched. Throws UserError when the machine does not give it.
void on_deep_stack(std::size_t bytes, const std::function<void()>& work);

}  // namespace glimpse::text
