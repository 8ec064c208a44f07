#include "glimpse/engine/requests/prompt_start.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "glimpse/engine/failure.h"
#include "glimpse/engine/requests/reuse.h"
#include "glimpse/engine/session/saved.h"

namespace glimpse::engine {
namespace {

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

void load_session(Runtime& runtime, ActiveRequest& request) {
  const std::filesystem::path& file = *request.request.session;
  SessionUse& use = request.result.stats.session.emplace();
  require_session_place(file);
  if (std::error_code failed; !std::filesystem::exists(file, failed)) return;
  const auto start = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  const SessionReader reader(file);
  const SavedSession session = read_session(reader, session_model(runtime.loaded, runtime.cache()));
  const plan::Plan& plan = request.request.plan;
  const std::span<const Token> prompt(request.request.prompt);
  use.file_tokens = session.length();
  use.common_tokens = common_prefix(session.tokens, prompt);
  if (request.request.prompt_logprobs) {
    use.why_less = "log-probabilities of the prompt's tokens come out of a prefill";
    return;
  }
  Share share = share_of({session.tokens, &session.plan, session.prompt_tokens, session.decode_steps, session.whole(),
                          !session.logits.empty()},
                         {prompt, &plan, static_cast<std::int64_t>(chunk_rows(plan, runtime.options.prefill_chunk))});
  use.loaded_tokens = share.tokens;
  use.why_less = std::move(share.why_less);
  if (share.tokens > 0) {
    request.sequence = adopt(reader, session, {&plan, share.tokens, share.state}, runtime.home());
    if (!share.state) request.sequence->open_prompt = true;
    request.sequence->on_sets = request.request.on_sets;
    request.prefilled = share.tokens;
    request.result.stats.reused_tokens = share.tokens;
  }
  use.load_s = seconds_since(start);
  use.load_cpu_s = cpu_seconds() - cpu;
}

void go_on_from(Runtime& runtime, ActiveSequence& held, ActiveRequest& request) {
  if (request.request.prompt_logprobs) return;
  const plan::Plan& plan = request.request.plan;
  const bool whole = !forgetful_head(runtime.cache(), held).has_value();
  const Share share = share_of(
      {held.tokens, &held.plan(), held.attention.prompt_tokens, held.attention.decode_steps, whole, false},
      {request.request.prompt, &plan, static_cast<std::int64_t>(chunk_rows(plan, runtime.options.prefill_chunk))});
  if (share.tokens == 0) return;
  if (!share.state) {
    attention::SequenceState state(plan, runtime.programs.gates);
    truncate(runtime.cache(), held, share.tokens);
    state.boundaries = std::move(held.attention.boundaries);
    held.attention = std::move(state);
    held.program = program_of(plan, runtime.programs);
    held.steps = 0;
    held.open_prompt = true;
  }
  held.stats = {};
  held.logits.clear();
  held.on_sets = request.request.on_sets;
  const kv::SequenceId id = std::exchange(held.id, -1);
  request.sequence = std::move(held);
  request.sequence->id = id;
  request.handed_over = true;
  request.prefilled = share.tokens;
  request.result.stats.reused_tokens = share.tokens;
}

std::exception_ptr save_grown(const Runtime& runtime, ActiveRequest& request, std::span<const float> logits) noexcept {
  SessionUse& use = *request.result.stats.session;
  const std::int64_t length = request.sequence->length;
  if (use.file_tokens > 0 && (length <= use.file_tokens || 2 * use.common_tokens < use.file_tokens)) return {};
  const auto start = std::chrono::steady_clock::now();
  std::exception_ptr found;
  try {
    if (use.file_tokens > 0) {
      use.read_only = why_read_only(*request.request.session);
      if (!use.read_only.empty()) return {};
    }
    use.saved_bytes =
        save_sequence(*request.sequence, logits, *request.request.session, runtime.loaded, runtime.cache());
    use.saved_tokens = length;
  } catch (...) {  // the prompt is paid for: the answer goes on
    const std::exception_ptr why = std::current_exception();
    use.save_error = text_of(why);
    if (is_bug(why)) found = why;
  }
  use.save_s = seconds_since(start);
  return found;
}

}  // namespace glimpse::engine
