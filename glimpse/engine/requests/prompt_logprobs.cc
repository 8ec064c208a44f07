#include "glimpse/engine/requests/prompt_logprobs.h"

#include <algorithm>

#include "glimpse/engine/finite_logits.h"

namespace glimpse::engine {

void take_prompt_logprobs(Runtime& runtime, ActiveRequest& request, const ChunkRows& rows) {
  const std::vector<Token>& prompt = request.request.prompt;
  const std::size_t vocabulary = runtime.loaded.vocabulary();
  const std::size_t first = static_cast<std::size_t>(request.sequence->length) - rows.count;
  // A row tells of the token behind it; that of the last one is the answer's.
  const std::size_t end = std::min(static_cast<std::size_t>(request.sequence->length), prompt.size() - 1);
  for (std::size_t at = first; at < end; at += exec::kLogitRows) {
    const std::size_t count = std::min(exec::kLogitRows, end - at);
    const std::span<const float> logits = rows.passes.logits_of(rows.entry, at - first, count);
    if (const auto bad = first_not_finite(logits, vocabulary)) {
      std::rethrow_exception(not_finite_error(runtime.loaded, runtime.cache().shape().format.type,
                                              static_cast<std::int64_t>(at) + bad->row, &*bad));
    }
    for (std::size_t row = 0; row < count; ++row) {
      request.result.prompt_logprobs.push_back(text::logprobs_of(
          logits.subspan(row * vocabulary, vocabulary), prompt[at + row + 1], *request.request.prompt_logprobs));
    }
  }
}

}  // namespace glimpse::engine
