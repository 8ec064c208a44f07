#include "glimpse/engine/requests/decode_lossless.h"

#include <algorithm>

#include "glimpse/engine/requests/decode_plain.h"

namespace glimpse::engine {
namespace {

DraftCosts draft_costs(const Runtime& runtime, const ActiveRequest& request) {
  const plan::ModelShape mine = runtime.loaded.shape();
  DraftCosts costs;
  costs.weights = runtime.loaded.weight_bytes;
  costs.dense = static_cast<double>(request.sequence->length) * mine.layers * mine.kv_heads * 2 *
                static_cast<double>(runtime.cache().shape().format.read_bytes());
  costs.group = mine.group();
  costs.rows = runtime.device.executor->row_costs();
  // Before the first draft: a guess that lets it be tried.
  costs.sparse = request.drafting->sparse_bytes > 0 ? request.drafting->sparse_bytes : costs.dense / 8;
  return costs;
}

/// Drafts for which the answer and the context have room when so many more of its tokens are there; 0 too where the
/// plan is dense then. The verification's own token comes on top of them, and its row needs room.
std::int64_t most_drafts(const Runtime& runtime, const ActiveRequest& request, std::int64_t more) {
  const std::int64_t length = request.sequence->length + more;
  if (plan::is_dense_at(request.sequence->plan(), length + 1)) return 0;
  std::int64_t most = runtime.options.context - length - 1;
  if (request.request.max_tokens > 0) {
    most = std::min(most, request.request.max_tokens - request.result.stats.generated_tokens - more - 1);
  }
  return most;
}

/// Of one kind; `tokens` are the request's.
PassEntry entry_of(ActiveRequest& request, attention::PassKind kind, std::span<const Token> tokens) {
  PassEntry entry{&*request.sequence, tokens, kind};
  // A grammar may bind from a drafted token on.
  const bool greedy = request.sampler.deciding() == 1 && !request.request.grammar.grammar && !request.request.logprobs;
  entry.leaders = greedy ? 1 : 0;
  entry.committed = request.drafting->base;
  return entry;
}

PassEntry dense_entry(ActiveRequest& request) {
  return entry_of(request, attention::PassKind::dense_decode, {&request.next, 1});
}

/// Behind so many drafts.
PassEntry draft_entry(ActiveRequest& request, std::size_t drafted) {
  return entry_of(request, attention::PassKind::draft, request.drafting->first(drafted + 1).last(1));
}

/// Of so many drafts.
PassEntry verification_entry(ActiveRequest& request, std::size_t drafted) {
  PassEntry entry = entry_of(request, attention::PassKind::verify, request.drafting->first(drafted + 1));
  entry.logits = PassEntry::Logits::all;
  return entry;
}

/// What a row says of the token behind it, where the largest logits decide or all are there.
void distribution_of(const Rows& rows, std::size_t row, std::size_t count, text::Sampler& sampler,
                     std::vector<text::TokenProbability>& out) {
  if (rows.leaders.empty()) {
    const std::size_t vocabulary = rows.logits.size() / count;
    return sampler.distribution(rows.logits.subspan(row * vocabulary, vocabulary), out);
  }
  const std::size_t each = rows.leaders.size() / count;
  const auto own = rows.leaders.subspan(row * each, each);
  const auto best = std::max_element(own.begin(), own.end(), [](const exec::Leader& a, const exec::Leader& b) {
    return a.logit < b.logit;  // of equal ones the first, which has the lower token
  });
  out.assign(1, {best->token, 1.0F});
}

void take_draft(Runtime& runtime, ActiveRequest& request, const Rows& rows) {
  const text::Tokenizer& tokenizer = runtime.loaded.tokenizer;
  Drafting& drafting = *request.drafting;
  if (drafting.proposals.size() <= drafting.drafted) drafting.proposals.resize(drafting.drafted + 1);
  auto& proposal = drafting.proposals[drafting.drafted];
  distribution_of(rows, 0, 1, *drafting.sampler, proposal);
  const Token token = draw(proposal, drafting.random);
  drafting.sampler->accept(token);
  drafting.rows[++drafting.drafted] = token;
  drafting.sparse_bytes = static_cast<double>(request.sequence->last_bytes);
  drafting.ended = (tokenizer.ends_generation(token) && !request.request.ignore_end) || drafting.sampler->must_end();
  // Another draft may have been launched already.
  if (drafting.ended && drafting.drafted < drafting.wanted) runtime.passes.take_back(*request.sequence);
}

/// Keeps the agreeing prefix and one token of the dense pass; what the pass wrote behind them is taken back.
void take_verdict(Runtime& runtime, ActiveRequest& request, const Rows& rows) {
  Drafting& drafting = *request.drafting;
  ActiveSequence& sequence = *request.sequence;
  const std::size_t drafted = drafting.drafted;
  const std::size_t count = drafted + 1, vocabulary = rows.logits.size() / count;
  const std::int64_t base = drafting.base;
  // First what is decided alone, then what the cache keeps, then the callbacks, which may end the request.
  std::vector<Token> said;
  text::Sampler sampler = request.sampler.clone();
  AnswerText text = request.text;  // nothing behind a stop string is kept
  std::size_t accepted = 0;
  for (std::size_t row = 0; row <= drafted; ++row) {
    distribution_of(rows, row, count, sampler, drafting.verdict);
    const bool last = row == drafted;
    const Token token =
        last ? draw(drafting.verdict, drafting.random)
             : verified(drafting.rows[row + 1], drafting.proposals[row], drafting.verdict, drafting.random);
    sampler.accept(token);
    said.push_back(token);
    if (last || token != drafting.rows[row + 1]) break;
    ++accepted;
    if (!request.request.stop.empty() &&
        text.add(token, answer_piece(runtime.loaded.tokenizer, request.request, token))) {
      break;
    }
    if (drafting.ended && accepted == drafted) break;
  }
  const auto kept = static_cast<std::int64_t>(said.size());
  truncate(runtime.cache(), sequence, base + kept);
  sequence.attention.commit_drafts(kept, sequence.length, sequence.plan().heat.decay);
  sequence.steps += kept;
  const plan::ModelShape mine = runtime.loaded.shape();
  for (std::int64_t length = base + 1; length <= base + kept; ++length) {
    const std::int64_t dense = length * mine.layers * mine.kv_heads;
    sequence.stats.dense_k_rows += dense;
    sequence.stats.dense_v_rows += dense;
    sequence.stats.dense_bytes += 2 * dense * static_cast<std::int64_t>(runtime.cache().shape().format.read_bytes());
  }
  drafting.length.record(static_cast<int>(drafted), static_cast<int>(accepted));
  drafting.sampler.reset();
  RequestStats& stats = request.result.stats;
  stats.lossless.drafted += static_cast<std::int64_t>(drafted);
  stats.lossless.accepted += static_cast<std::int64_t>(accepted);
  ++stats.lossless.verify_passes;
  stats.attention = sequence.stats;
  for (std::size_t i = 0; i < said.size() && request.phase == Phase::decode; ++i) {
    take_token(runtime, request,
               {said[i], base + static_cast<std::int64_t>(i) + 1, rows.logits.subspan(i * vocabulary, vocabulary)});
  }
}

}  // namespace

PassEntry drafting_entry(Runtime& runtime, ActiveRequest& request) {
  Drafting& drafting = *request.drafting;
  ActiveSequence& sequence = *request.sequence;
  if (!drafting.sampler) {
    const std::int64_t most = most_drafts(runtime, request, 0);
    const std::int64_t wanted = most > 0 ? drafting.length.next(draft_costs(runtime, request)) : 0;
    drafting.wanted = static_cast<std::size_t>(std::min(std::max<std::int64_t>(most, 0), wanted));
    if (drafting.wanted == 0) return dense_entry(request);
    drafting.sampler.emplace(request.sampler.clone());
    drafting.base = sequence.length;
    drafting.rows.front() = request.next;
    drafting.drafted = 0;
    drafting.ended = false;
  }
  if (drafting.drafted < drafting.wanted && !drafting.ended) return draft_entry(request, drafting.drafted);
  truncate(runtime.cache(), sequence, drafting.base);
  return verification_entry(request, drafting.drafted);
}

std::optional<PassEntry> entry_behind(const Runtime& runtime, ActiveRequest& request, attention::PassKind runs) {
  Drafting& drafting = *request.drafting;
  if (runs == attention::PassKind::draft) {
    const std::size_t drafted = drafting.drafted + 1;
    return drafted < drafting.wanted ? draft_entry(request, drafted) : verification_entry(request, drafted);
  }
  if (most_drafts(runtime, request, 1) > 0 && !drafting.length.rest()) return {};
  return dense_entry(request);
}

void leave_cycle(Runtime& runtime, ActiveRequest& request) {
  if (!request.drafting || request.phase == Phase::done || !request.sequence || request.sequence->broken) return;
  try {
    leave_drafts(runtime.cache(), *request.sequence, *request.drafting);
  } catch (const UserError& error) {
    request.sequence->broken = error.what();
  }
}

void take_drafting(Runtime& runtime, ActiveRequest& request, attention::PassKind kind, const Rows& rows,
                   double seconds) {
  LosslessStats& stats = request.result.stats.lossless;
  switch (kind) {
    case attention::PassKind::draft:
      stats.draft_s += seconds;
      return take_draft(runtime, request, rows);
    case attention::PassKind::verify:
      stats.verify_s += seconds;
      return take_verdict(runtime, request, rows);
    default:
      ++stats.dense_steps;
      if (!rows.leaders.empty()) return take_leaders(runtime, request, rows.leaders);
      take_logits(runtime, request, rows.logits);
  }
}

}  // namespace glimpse::engine
