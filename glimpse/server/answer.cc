#include "glimpse/server/answer.h"

#include <algorithm>
#include <utility>

#include "glimpse/server/answer_json.h"

namespace glimpse::server {

Answer::Answer(AnswerHead head, std::vector<engine::Stream> streams) : head_(std::move(head)) {
  choices_.reserve(streams.size());
  for (engine::Stream& stream : streams) {
    choices_.emplace_back(std::move(stream));
    if (head_.parser) choices_.back().tools.emplace(head_.parser);
  }
}

Answer::~Answer() {
  if (head_.watch) head_.watch->end(finish_word(engine::FinishReason::cancelled));
}

bool Answer::collect() {
  bool any = false;
  for (Choice& choice : choices_) {
    while (auto event = choice.stream.next(std::chrono::nanoseconds(0))) {
      take(choice, std::move(*event));
      any = true;
    }
  }
  return any;
}

void Answer::take(Choice& choice, engine::StreamEvent event) {
  using Kind = engine::StreamEvent::Kind;
  if (event.kind == Kind::started) {
    choice.begun = true;
    choice.started = event.at;
  }
  if (event.kind == Kind::prefill && head_.return_progress) {
    const double seconds = engine::seconds_between(choice.started, event.at);
    choice.progress = {event.total, event.done, event.reused, 1000 * seconds};
  }
  choice.text += event.text;
  if (!event.prompt_logprobs.empty()) choice.prompt_logprobs = std::move(event.prompt_logprobs);
  choice.tokens += std::ssize(event.tokens);
  for (engine::StreamToken& token : event.tokens) {
    if (token.logprobs) choice.logprobs.push_back(std::move(*token.logprobs));
  }
  if (event.kind != Kind::finished) return;
  choice.result = std::move(event.result);
  const auto& known = choice.result.logprobs;
  if (!head_.chat && known.size() > choice.result.tokens.size()) choice.logprobs.push_back(known.back());
  choice.ended = true;
  if (head_.watch) head_.watch->end(finish_word(choice.result.reason));
  if (choice.result.reason != engine::FinishReason::failed || failure_) return;
  // What the engine refuses is the client's; what it began and could not finish is ours, unless it was asked too much.
  failure_.emplace(choice.begun && !choice.result.at_fault ? 500 : 400, choice.result.error);
  cancel();
}

bool Answer::begun() const {
  return ended() || std::any_of(choices_.begin(), choices_.end(), [](const Choice& each) { return each.begun; });
}

bool Answer::ended() const {
  return std::all_of(choices_.begin(), choices_.end(), [](const Choice& each) { return each.ended; });
}

void Answer::cancel() {
  for (const Choice& choice : choices_) choice.stream.cancel();
}

std::int64_t Answer::generated() const {
  std::int64_t sum = 0;
  for (const Choice& choice : choices_) sum += choice.tokens;
  return sum;
}

std::vector<engine::Result> Answer::take_finished() {
  std::vector<engine::Result> results;
  for (Choice& choice : choices_) {
    if (choice.ended && !std::exchange(choice.counted, true)) results.push_back(choice.result);
  }
  return results;
}

std::string Answer::events() {
  std::string out;
  if (told_all_) return out;
  if (failure_) {
    told_all_ = true;
    return event_text(error_json(*failure_)) + event_text("[DONE]");
  }
  const bool all = ended();
  AnswerSums sums;
  if (all) {
    for (const Choice& choice : choices_) sums.add(choice.result, head_.choices);
  }
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    if (!choice.begun && !choice.ended) continue;
    ChunkText chunk{head_, static_cast<std::int64_t>(i)};
    if (!std::exchange(choice.told_role, true)) out += event_text(chunk.role());
    out += echo_event(choice, chunk);
    if (choice.progress) out += event_text(chunk.progress(*std::exchange(choice.progress, std::nullopt)));
    if (choice.tools) {
      out += tool_events(choice, chunk);
    } else if (!choice.text.empty() || (choice.ended && !choice.logprobs.empty())) {
      add_text(out, choice, chunk, std::exchange(choice.text, {}));
    }
    if (!choice.ended || std::exchange(choice.told_end, true)) continue;
    const bool last = all && std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.told_end; });
    const bool calls = choice.tools && !choice.tools->told().calls.empty();
    out +=
        event_text(chunk.end(finish_word(choice.result.reason, calls), last && !head_.include_usage ? &sums : nullptr));
  }
  if (all) {
    if (head_.include_usage) out += event_text(ChunkText{head_, 0}.usage(sums));
    out += event_text("[DONE]");
    told_all_ = true;
  }
  return out;
}

void Answer::add_text(std::string& out, Choice& choice, const ChunkText& chunk, std::string_view text) {
  if (choice.logprobs.empty()) {
    if (!choice.frame) choice.frame = std::make_shared<const TextFrame>(chunk.frame());
    choice.frame->add_event(out, text);
  } else {
    out += event_text(chunk.text(text, choice.logprobs, choice.offset));
    choice.logprobs.clear();
  }
}

std::string Answer::echo_event(Choice& choice, const ChunkText& chunk) {
  const EchoedPrompt* echoed = echoed_of(static_cast<std::size_t>(chunk.index));
  if (echoed == nullptr || choice.told_echo) return {};
  // They come with the first token, or with the end where there is none.
  if (head_.logprobs && choice.tokens == 0 && !choice.ended) return {};
  choice.told_echo = true;
  if (choice.tokens == 0) choice.prompt_logprobs = choice.result.prompt_logprobs;
  const std::vector<text::TokenLogprobs> known = std::exchange(choice.prompt_logprobs, {});
  return event_text(chunk.echo(*echoed, known, choice.offset));
}

std::string Answer::tool_events(Choice& choice, const ChunkText& chunk) {
  std::string out;
  choice.tools->add(std::exchange(choice.text, {}));
  for (const ToolDelta& delta : choice.tools->take(choice.ended)) {
    if (delta.call >= 0) {
      out += event_text(chunk.call(delta));
      continue;
    }
    add_text(out, choice, chunk, delta.content);
  }
  // Those of tokens that are in no content come without any.
  if (choice.ended && !choice.logprobs.empty()) add_text(out, choice, chunk, {});
  return out;
}

const EchoedPrompt* Answer::echoed_of(std::size_t choice) const {
  return head_.echoed.empty() ? nullptr : &head_.echoed.at(choice / static_cast<std::size_t>(head_.choices));
}

std::string Answer::whole() {
  AnswerSums sums;
  std::vector<WholeChoice> choices;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    sums.add(choices_[i].result, head_.choices);
    Choice& choice = choices_[i];
    if (choice.tools) {
      choice.tools->add(std::exchange(choice.text, {}));
      choice.tools->take(true);
    }
    choices.push_back({choice.text, &choice.result, echoed_of(i), choice.tools ? &choice.tools->told() : nullptr});
  }
  return whole_json(head_, choices, sums);
}

}  // namespace glimpse::server
