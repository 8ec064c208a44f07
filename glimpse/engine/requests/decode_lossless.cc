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

void take_draft(const text::Tokenizer& tokenizer, ActiveRequest& request, const Rows& rows) {
  Drafting& drafting = *request.drafting;
  if (drafting.proposals.size() < drafting.rows.size()) drafting.proposals.resize(drafting.rows.size());
  auto& proposal = drafting.proposals[drafting.drafted()];
  distribution_of(rows, 0, 1, *drafting.sampler, proposal);
  const Token token = draw(proposal, drafting.random);
  drafting.sampler->accept(token);
  drafting.rows.push_back(token);
  drafting.sparse_bytes = static_cast<double>(request.sequence->last_bytes);
  drafting.ended = (tokenizer.ends_generation(token) && !request.request.ignore_end) || drafting.sampler->must_end();
}

/// Keeps the agreeing prefix and one token of the dense pass; what the pass wrote behind them is taken back.
void take_verdict(Runtime& runtime, ActiveRequest& request, const Rows& rows) {
  Drafting& drafting = *request.drafting;
  ActiveSequence& sequence = *request.sequence;
  const std::size_t drafted = drafting.drafted();
  const std::size_t count = drafting.rows.size(), vocabulary = rows.logits.size() / count;
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
  PassEntry entry{&sequence, {&request.next, 1}};
  // A grammar may bind from a drafted token on.
  const bool greedy = request.sampler.deciding() == 1 && !request.request.grammar.grammar && !request.request.logprobs;
  entry.leaders = greedy ? 1 : 0;
  if (!drafting.sampler) {
    // The verification's own token comes on top of the drafts, and its row needs room.
    std::int64_t most = runtime.options.context - sequence.length - 1;
    if (request.request.max_tokens > 0) {
      most = std::min(most, request.request.max_tokens - request.result.stats.generated_tokens - 1);
    }
    const bool sparse = !plan::is_dense_at(sequence.plan(), sequence.length + 1);
    const int wanted = most > 0 && sparse ? drafting.length.next(draft_costs(runtime, request)) : 0;
    drafting.wanted = static_cast<int>(std::min<std::int64_t>(most, wanted));
    if (drafting.wanted <= 0) {
      drafting.turn = Drafting::Turn::dense;
      entry.kind = attention::PassKind::dense_decode;
      return entry;
    }
    drafting.sampler.emplace(request.sampler.clone());
    drafting.base = sequence.length;
    drafting.rows.assign(1, request.next);
    drafting.ended = false;
  }
  if (static_cast<int>(drafting.drafted()) < drafting.wanted && !drafting.ended) {
    drafting.turn = Drafting::Turn::draft;
    entry.tokens = std::span(drafting.rows).last(1);
    entry.kind = attention::PassKind::draft;
    entry.committed = drafting.base;
    return entry;
  }
  drafting.turn = Drafting::Turn::verify;
  truncate(runtime.cache(), sequence, drafting.base);
  entry.tokens = drafting.rows;
  entry.kind = attention::PassKind::verify;
  entry.logits = PassEntry::Logits::all;
  return entry;
}

void take_drafting(Runtime& runtime, ActiveRequest& request, const Rows& rows, double seconds) {
  LosslessStats& stats = request.result.stats.lossless;
  switch (request.drafting->turn) {
    case Drafting::Turn::dense:
      ++stats.dense_steps;
      if (rows.leaders.empty()) {
        take_logits(runtime, request, rows.logits);
      } else {
        take_leaders(runtime, request, rows.leaders);
      }
      break;
    case Drafting::Turn::draft:
      stats.draft_s += seconds;
      take_draft(runtime.loaded.tokenizer, request, rows);
      break;
    case Drafting::Turn::verify:
      stats.verify_s += seconds;
      take_verdict(runtime, request, rows);
      break;
  }
}

}  // namespace glimpse::engine
