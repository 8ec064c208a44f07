#include "glimpse/engine/requests/chunk_entry.h"

#include "glimpse/engine/requests/jobs.h"

namespace glimpse::engine {

PassEntry chunk_entry(const Runtime& runtime, ActiveRequest& request) {
  const std::span<const Token> prompt(request.request.prompt);
  const auto first = static_cast<std::size_t>(request.prefilled);
  const std::size_t count = next_chunk(runtime, request);
  PassEntry entry{&*request.sequence, prompt.subspan(first, count)};
  entry.kind = attention::PassKind::prompt;
  entry.prompt_end = static_cast<std::int64_t>(prompt.size());
  entry.logits = first + count == prompt.size() ? PassEntry::Logits::last : PassEntry::Logits::none;
  entry.keeps_rows = request.request.prompt_logprobs.has_value();
  const bool wanted = request.request.keep || request.request.session;  // what is in, when it is cancelled
  if (!wanted || can_take_back(entry)) entry.stop = request.stop.get();
  if (request.result.stats.first_chunk_s < 0) request.result.stats.first_chunk_s = seconds_since(request.submitted);
  return entry;
}

}  // namespace glimpse::engine
