#include "glimpse/text/sampler.h"

#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/base/request_error.h"
#include "glimpse/text/penalties.h"

namespace glimpse::text {
namespace {

// Below it, logits over the temperature overflow a float.
constexpr float kLeastTemperature = 1e-3f;
constexpr int kMostLastN = 1 << 20;
constexpr float kMostBias = 1000;
constexpr float kNever = -std::numeric_limits<float>::infinity();

struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPointer = std::unique_ptr<llama_sampler, FreeSampler>;

struct Range {
  std::string name;
  float least, most;
  std::string_view cure;
};

/// Written so that NaN fails.
void check_range(float value, const Range& range) {
  if (value >= range.least && value <= range.most) return;
  throw UserError(
      fmt::format("{} is {}; it must be from {} to {}; {}", range.name, value, range.least, range.most, range.cure));
}

SamplerPointer make_chain(const SamplingOptions& options) {
  llama_sampler_chain_params params = llama_sampler_chain_default_params();
  params.no_perf = true;
  SamplerPointer chain(llama_sampler_chain_init(params));
  const auto add = [&](llama_sampler* sampler) { llama_sampler_chain_add(chain.get(), sampler); };
  if (options.temperature == 0) return chain;
  if (options.top_k > 0) add(llama_sampler_init_top_k(options.top_k));
  if (options.top_p < 1) add(llama_sampler_init_top_p(options.top_p, 1));
  if (options.min_p > 0) add(llama_sampler_init_min_p(options.min_p, 1));
  add(llama_sampler_init_temp(options.temperature));
  return chain;
}

/// libllama reads this one seed as "take a random one".
std::uint32_t seed_of(const SamplingOptions& options) {
  return options.seed == LLAMA_DEFAULT_SEED ? LLAMA_DEFAULT_SEED - 1 : options.seed;
}

/// In [0, 1), as libllama takes one for each token.
double next_number(std::mt19937& numbers) {
  return std::uniform_real_distribution<double>(0, 1)(numbers);
}

}  // namespace

void validate(const SamplingOptions& options) {
  if (options.temperature != 0) {
    check_range(options.temperature, {"the temperature", kLeastTemperature, 100, "0 takes the likeliest token"});
  }
  if (options.top_k < 0)
    throw UserError(fmt::format("top-k is {}; it must be 0 or more; 0 turns it off", options.top_k));
  check_range(options.top_p, {"top-p", 0, 1, "1 turns it off"});
  check_range(options.min_p, {"min-p", 0, 1, "0 turns it off"});
  check_range(options.repeat_penalty, {"the repeat penalty", 0.01f, 100, "1 turns it off"});
  check_range(options.frequency_penalty, {"the frequency penalty", -100, 100, "0 turns it off"});
  check_range(options.presence_penalty, {"the presence penalty", -100, 100, "0 turns it off"});
  if (options.repeat_last_n < -1 || options.repeat_last_n > kMostLastN) {
    throw UserError(fmt::format(
        "the penalties' look-back (repeat-last-n) is {}; it must be from -1 to {}; 0 turns penalties off, -1 is all",
        options.repeat_last_n, kMostLastN));
  }
  for (const TokenBias& each : options.logit_bias) {
    if (each.token < 0) throw UserError(fmt::format("a logit bias of token {}; give an id of 0 or more", each.token));
    if (each.bias == kNever) continue;
    check_range(each.bias, {fmt::format("the logit bias of token {}", each.token), -kMostBias, kMostBias,
                            "-inf forbids the token"});
  }
}

struct Sampler::Impl {
  bool greedy = true;
  Draw settings;  ///< without its number
  Penalties penalties;
  std::vector<TokenBias> biases;
  std::vector<Token> banned;
  std::int64_t banned_until = 0, accepted = 0;  ///< tokens of the answer
  std::optional<GrammarFollower> grammar;
  std::vector<Token> ends;  ///< of a grammar: what may be taken where it may end
  SamplerPointer chain;     ///< what filters logits
  SamplerPointer draw;      ///< not greedy: draws from what is left, by the next of these numbers:
  std::mt19937 numbers;     ///< as libllama's, which says none of its own
  std::vector<llama_token_data> candidates;

  bool bans() const { return accepted < banned_until; }
  bool binds() const { return grammar && grammar->binds(); }
  bool allows(Token token) const {
    return std::find(ends.begin(), ends.end(), token) != ends.end() ? grammar->may_end() : grammar->allows(token);
  }
  /// Leaves only what the grammar allows.
  void obey();
  /// True where `best`, the likeliest by the logits, is taken.
  bool takes(Token best) const { return greedy && !changes() && (!binds() || allows(best)); }
  /// True where the likeliest token may be another than the logits say.
  bool changes() const { return penalties.any() || !biases.empty() || bans(); }
  /// Biases, bans and penalties, and the chain. Ascending ids when greedy.
  llama_token_data_array filter(std::span<const float> logits);
  llama_token_data& candidate(Token token) {
    check(token >= 0 && static_cast<std::size_t>(token) < candidates.size(), "a token of the vocabulary");
    return candidates[static_cast<std::size_t>(token)];
  }
  /// Leaves out tokens that may not be taken: the chain may not see them.
  void drop_forbidden();
  /// One of what the chain left.
  Token drawn(llama_token_data_array& array) {
    llama_sampler_apply(draw.get(), &array);
    next_number(numbers);
    check(array.selected >= 0 && static_cast<std::size_t>(array.selected) < array.size, "libllama selected no token");
    return array.data[array.selected].id;
  }
};

Sampler::Sampler(const SamplingOptions& options) {
  validate(options);
  impl_ = std::make_unique<Impl>();
  impl_->greedy = options.temperature == 0;
  impl_->settings = {options.temperature, options.top_k, options.top_p, options.min_p};
  impl_->penalties = Penalties(options);
  impl_->biases = options.logit_bias;
  impl_->chain = make_chain(options);
  impl_->draw.reset(llama_sampler_init_dist(seed_of(options)));
  impl_->numbers.seed(seed_of(options));
}

Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;

Sampler Sampler::clone() const {
  Sampler copy{SamplingOptions{}};
  Impl& to = *copy.impl_;
  to.greedy = impl_->greedy;
  to.settings = impl_->settings;
  to.penalties = impl_->penalties;
  to.biases = impl_->biases;
  to.banned = impl_->banned;
  to.banned_until = impl_->banned_until;
  to.accepted = impl_->accepted;
  to.grammar = impl_->grammar;
  to.ends = impl_->ends;
  to.chain.reset(llama_sampler_clone(impl_->chain.get()));
  to.draw.reset(llama_sampler_clone(impl_->draw.get()));
  to.numbers = impl_->numbers;
  return copy;
}

void Sampler::Impl::drop_forbidden() {
  std::erase_if(candidates, [](const llama_token_data& each) { return each.logit == kNever; });
  if (!candidates.empty()) return;
  if (binds()) {
    throw RequestError(
        "no token is left to take: of the model's tokens the grammar allows none here, or the logit biases or the "
        "least number of tokens forbid them; change the grammar, or leave those out");
  }
  throw RequestError(
      "no token is left to take: the logit biases forbid all of them, or all but those that end the text before its "
      "least number of tokens; forbid fewer, or ask for fewer tokens at least");
}

void Sampler::Impl::obey() {
  const std::shared_ptr<const TokenSet> allowed = grammar->allowed();
  std::vector<std::pair<Token, float>> kept;
  if (grammar->may_end()) {
    for (const Token token : ends) kept.emplace_back(token, candidate(token).logit);
  }
  for (llama_token_data& each : candidates) {
    if (!allowed->has(each.id)) each.logit = kNever;
  }
  for (const auto& [token, logit] : kept) candidate(token).logit = logit;
}

llama_token_data_array Sampler::Impl::filter(std::span<const float> logits) {
  candidates.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = std::isnan(logits[i]) ? kNever : logits[i];
    candidates[i] = {static_cast<Token>(i), logit, 0.0f};
  }
  for (const TokenBias& each : biases) candidate(each.token).logit += each.bias;
  if (bans()) {
    for (const Token token : banned) candidate(token).logit = kNever;
  }
  if (penalties.any()) {
    for (const auto& [token, count] : penalties.counts()) {
      llama_token_data& own = candidate(token);
      own.logit = penalties.penalised(own.logit, count);
    }
  }
  if (binds()) obey();
  if (!biases.empty() || bans() || binds()) drop_forbidden();
  llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
  llama_sampler_apply(chain.get(), &array);
  return array;
}

namespace {

/// The first of the largest. NaN never compares greater, so it is never the best.
std::size_t arg_max(std::span<const float> logits) {
  check(!logits.empty(), "no logits to sample from");
  std::size_t best = 0;
  float best_logit = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best_logit) {
      best_logit = logits[i];
      best = i;
    }
  }
  if (!std::isfinite(best_logit)) {
    throw UserError(fmt::format(
        "the logits have no finite maximum (the largest is {}); the model file is likely damaged", best_logit));
  }
  return best;
}

/// Of equal ones the first, which has the lower id: nothing has changed their order when greedy.
Token best_of(const llama_token_data_array& array) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < array.size; ++i) {
    if (array.data[i].logit > array.data[best].logit) best = i;
  }
  return array.data[best].id;
}

}  // namespace

int Sampler::deciding() const {
  if (impl_->changes() || impl_->binds()) return 0;
  return impl_->greedy ? 1 : impl_->settings.top_k;
}

Draw Sampler::next_draw(int more) const {
  Draw draw = impl_->settings;
  if (impl_->greedy) return draw;
  std::mt19937 numbers = impl_->numbers;
  for (int i = 0; i <= more; ++i) draw.uniform = next_number(numbers);
  return draw;
}

Token Sampler::sample_largest(std::span<const TokenLogit> largest) {
  check(!largest.empty() && deciding() > 0, "logits that decide by themselves");
  impl_->candidates.clear();
  for (const TokenLogit& each : largest) impl_->candidates.push_back({each.token, each.logit, 0.0f});
  llama_token_data_array array{impl_->candidates.data(), impl_->candidates.size(), -1, false};
  if (impl_->greedy) return best_of(array);
  llama_sampler_apply(impl_->chain.get(), &array);
  return impl_->drawn(array);
}

Token Sampler::sample(std::span<const float> logits) {
  const std::size_t best = arg_max(logits);
  if (impl_->takes(static_cast<Token>(best))) return static_cast<Token>(best);
  llama_token_data_array array = impl_->filter(logits);
  if (impl_->greedy) return best_of(array);
  return impl_->drawn(array);
}

void Sampler::distribution(std::span<const float> logits, std::vector<TokenProbability>& out) {
  const std::size_t best = arg_max(logits);
  out.clear();
  if (impl_->takes(static_cast<Token>(best))) {
    out.push_back({static_cast<Token>(best), 1.0F});
    return;
  }
  const llama_token_data_array array = impl_->filter(logits);
  if (impl_->greedy) {
    out.push_back({best_of(array), 1.0F});
    return;
  }
  float largest = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < array.size; ++i) largest = std::max(largest, array.data[i].logit);
  double sum = 0;
  for (std::size_t i = 0; i < array.size; ++i) {
    const float weight = std::exp(array.data[i].logit - largest);
    if (!(weight > 0)) continue;
    out.push_back({array.data[i].id, weight});
    sum += static_cast<double>(weight);
  }
  for (TokenProbability& entry : out) {
    entry.probability = static_cast<float>(static_cast<double>(entry.probability) / sum);
  }
  std::sort(out.begin(), out.end(),
            [](const TokenProbability& a, const TokenProbability& b) { return a.token < b.token; });
}

void Sampler::accept_prompt(std::span<const Token> tokens) {
  for (const Token token : tokens) impl_->penalties.accept(token, false);
}

void Sampler::accept(Token token) {
  ++impl_->accepted;
  impl_->penalties.accept(token, true);
  const auto& ends = impl_->ends;
  if (impl_->grammar && std::find(ends.begin(), ends.end(), token) == ends.end()) impl_->grammar->accept(token);
}

void Sampler::ban(std::span<const Token> tokens, std::int64_t accepted) {
  impl_->banned.assign(tokens.begin(), tokens.end());
  impl_->banned_until = accepted;
}

void Sampler::constrain(const GrammarWish& wish, std::span<const Token> ends) {
  impl_->grammar.emplace(wish);
  impl_->ends.assign(ends.begin(), ends.end());
}

bool Sampler::must_end() const {
  return impl_->grammar && impl_->grammar->must_end();
}

}  // namespace glimpse::text
