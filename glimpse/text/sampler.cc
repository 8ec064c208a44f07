#include "glimpse/text/sampler.h"

#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "glimpse/base/error.h"

namespace glimpse::text {
namespace {

// Below it, logits over the temperature overflow a float.
constexpr float kLeastTemperature = 1e-3f;
constexpr int kMostLastN = 1 << 20;

struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPointer = std::unique_ptr<llama_sampler, FreeSampler>;

struct Range {
  std::string_view name;
  float least, most;
  std::string_view cure;
};

/// Written so that NaN fails.
void check_range(float value, const Range& range) {
  if (value >= range.least && value <= range.most) return;
  throw UserError(
      fmt::format("{} is {}; it must be from {} to {}; {}", range.name, value, range.least, range.most, range.cure));
}

bool has_penalties(const SamplingOptions& options) {
  return options.repeat_last_n > 0 &&
         (options.repeat_penalty != 1.0f || options.frequency_penalty != 0.0f || options.presence_penalty != 0.0f);
}

SamplerPointer make_chain(const SamplingOptions& options) {
  llama_sampler_chain_params params = llama_sampler_chain_default_params();
  params.no_perf = true;
  SamplerPointer chain(llama_sampler_chain_init(params));
  const auto add = [&](llama_sampler* sampler) { llama_sampler_chain_add(chain.get(), sampler); };
  if (has_penalties(options)) {
    // The vocabulary's size is asked for by libllama's samplers in a graph only, which we do not use.
    add(llama_sampler_init_penalties(0, options.repeat_last_n, options.repeat_penalty, options.frequency_penalty,
                                     options.presence_penalty));
  }
  if (options.temperature == 0) return chain;
  if (options.top_k > 0) add(llama_sampler_init_top_k(options.top_k));
  if (options.top_p < 1) add(llama_sampler_init_top_p(options.top_p, 1));
  if (options.min_p > 0) add(llama_sampler_init_min_p(options.min_p, 1));
  add(llama_sampler_init_temp(options.temperature));
  return chain;
}

SamplerPointer make_draw(const SamplingOptions& options) {
  // libllama reads this one seed as "take a random one".
  const std::uint32_t seed = options.seed == LLAMA_DEFAULT_SEED ? LLAMA_DEFAULT_SEED - 1 : options.seed;
  return SamplerPointer(llama_sampler_init_dist(seed));
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
  if (options.repeat_last_n < 0 || options.repeat_last_n > kMostLastN) {
    throw UserError(
        fmt::format("the penalties' look-back (repeat-last-n) is {}; it must be from 0 to {}; 0 turns penalties off",
                    options.repeat_last_n, kMostLastN));
  }
}

struct Sampler::State {
  bool greedy = true;
  bool penalties = false;
  SamplerPointer chain;  ///< what changes and filters logits
  SamplerPointer draw;   ///< not greedy: draws from what is left
  std::vector<llama_token_data> candidates;

  /// Applies the chain to logits; greedy with no penalties is told without it.
  llama_token_data_array filter(std::span<const float> logits);
};

Sampler::Sampler(const SamplingOptions& options) {
  validate(options);
  state_ = std::make_unique<State>();
  state_->greedy = options.temperature == 0;
  state_->penalties = has_penalties(options);
  state_->chain = make_chain(options);
  state_->draw = make_draw(options);
}

Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;

Sampler Sampler::clone() const {
  Sampler copy{SamplingOptions{}};
  copy.state_->greedy = state_->greedy;
  copy.state_->penalties = state_->penalties;
  copy.state_->chain.reset(llama_sampler_clone(state_->chain.get()));
  copy.state_->draw.reset(llama_sampler_clone(state_->draw.get()));
  return copy;
}

llama_token_data_array Sampler::State::filter(std::span<const float> logits) {
  candidates.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = std::isnan(logits[i]) ? -std::numeric_limits<float>::infinity() : logits[i];
    candidates[i] = {static_cast<Token>(i), logit, 0.0f};
  }
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

/// Penalties change logits in place and keep the order of ids.
Token best_of(const llama_token_data_array& array) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < array.size; ++i) {
    if (array.data[i].logit > array.data[best].logit) best = i;
  }
  return array.data[best].id;
}

}  // namespace

Token Sampler::sample(std::span<const float> logits) {
  const std::size_t best = arg_max(logits);
  if (state_->greedy && !state_->penalties) return static_cast<Token>(best);
  llama_token_data_array array = state_->filter(logits);
  if (state_->greedy) return best_of(array);
  llama_sampler_apply(state_->draw.get(), &array);
  check(array.selected >= 0 && static_cast<std::size_t>(array.selected) < array.size, "libllama selected no token");
  return array.data[array.selected].id;
}

void Sampler::distribution(std::span<const float> logits, std::vector<TokenProbability>& out) {
  const std::size_t best = arg_max(logits);
  out.clear();
  if (state_->greedy && !state_->penalties) {
    out.push_back({static_cast<Token>(best), 1.0F});
    return;
  }
  const llama_token_data_array array = state_->filter(logits);
  if (state_->greedy) {
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

void Sampler::accept(Token token) {
  llama_sampler_accept(state_->chain.get(), token);
}

}  // namespace glimpse::text
