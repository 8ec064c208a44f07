#include "glimpse/text/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "glimpse/base/error.h"
#include "tests/support/reference_draw.h"
#include "tests/support/test_names.h"

namespace glimpse::text {
namespace {

using ::testing::HasSubstr;

constexpr int kVocabulary = 2000;

/// Logits as a model's are: a few that stand out, most far below; all distinct.
std::vector<float> some_logits(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(kVocabulary);
  for (float& logit : logits) logit = normal(random);
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
  return logits;
}

struct Choice {
  Token token;
  double probability;
};

/// The samplers' definitions, transcribed in double: biases, penalties, top-k, top-p, min-p, then the temperature.
/// Likeliest first. The first `prompt` tokens of the history are the prompt's.
std::vector<Choice> distribution(const std::vector<float>& logits, const SamplingOptions& options,
                                 const std::vector<Token>& history, std::size_t prompt = 0) {
  std::vector<double> adjusted(logits.begin(), logits.end());
  for (const TokenBias& bias : options.logit_bias) adjusted[static_cast<std::size_t>(bias.token)] += bias.bias;
  std::map<Token, int> counts, counted;
  const std::size_t sight =
      options.repeat_last_n < 0 ? history.size() : static_cast<std::size_t>(options.repeat_last_n);
  for (std::size_t i = history.size() - std::min(history.size(), sight); i < history.size(); ++i) {
    ++counts[history[i]];
    if (i >= prompt || options.penalise_prompt) ++counted[history[i]];
  }
  for (const auto& [token, count] : counts) {
    double& logit = adjusted[static_cast<std::size_t>(token)];
    logit = logit <= 0 ? logit * options.repeat_penalty : logit / options.repeat_penalty;
    if (counted[token] == 0) continue;
    logit -= counted[token] * static_cast<double>(options.frequency_penalty) + options.presence_penalty;
  }
  std::vector<Token> order(adjusted.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit_of = [&](Token token) { return adjusted[static_cast<std::size_t>(token)]; };
  std::sort(order.begin(), order.end(), [&](Token a, Token b) { return logit_of(a) > logit_of(b); });
  if (options.top_k > 0 && order.size() > static_cast<std::size_t>(options.top_k)) order.resize(options.top_k);

  const auto weights = [&](double temperature) {
    std::vector<double> w;
    for (const Token token : order) w.push_back(std::exp((logit_of(token) - logit_of(order[0])) / temperature));
    const double sum = std::accumulate(w.begin(), w.end(), 0.0);
    for (double& x : w) x /= sum;
    return w;
  };
  if (options.top_p < 1) {
    const std::vector<double> w = weights(1);
    double sum = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      sum += w[i];
      if (sum < options.top_p) continue;
      order.resize(i + 1);
      break;
    }
  }
  if (options.min_p > 0) {
    const std::vector<double> w = weights(1);
    std::size_t keep = 0;
    while (keep < w.size() && w[keep] >= options.min_p * w[0]) ++keep;
    order.resize(keep);
  }
  const std::vector<double> w = weights(options.temperature);
  std::vector<Choice> choices;
  for (std::size_t i = 0; i < order.size(); ++i) choices.push_back({order[i], w[i]});
  return choices;
}

/// 20,000 draws: nothing outside the support, each frequency within five standard deviations.
void expect_draws_follow(const SamplingOptions& options, const std::vector<Token>& history) {
  constexpr int kDraws = 20'000;
  const std::vector<float> logits = some_logits(5);
  const std::vector<Choice> expected = distribution(logits, options, history);
  Sampler sampler(options);
  for (const Token token : history) sampler.accept(token);
  std::map<Token, int> seen;
  for (int i = 0; i < kDraws; ++i) ++seen[sampler.sample(logits)];
  for (const Choice& choice : expected) {
    const double mean = kDraws * choice.probability;
    const double sigma = std::sqrt(mean * (1 - choice.probability));
    EXPECT_NEAR(seen[choice.token], mean, 5 * sigma + 1) << "token " << choice.token << " of " << expected.size();
    seen.erase(choice.token);
  }
  for (const auto& [token, count] : seen) ADD_FAILURE() << token << " drawn " << count << " times, outside the support";
}

SamplingOptions plain(float temperature) {
  SamplingOptions options;
  options.temperature = temperature;
  options.top_k = 0;
  options.top_p = 1;
  options.min_p = 0;
  options.seed = 99;
  return options;
}

struct NamedOptions {
  const char* name;
  SamplingOptions options;
};

void PrintTo(const NamedOptions& row, std::ostream* out) {
  *out << row.name;
}

std::vector<NamedOptions> cases() {
  SamplingOptions defaults;
  defaults.temperature = 0.8f;
  SamplingOptions top_k = plain(1), large_top_k = plain(1), top_p = plain(1), min_p = plain(1), tiny_top_p = plain(1);
  top_k.top_k = 7;
  large_top_k.top_k = 300;
  top_p.top_p = 0.9f;
  min_p.min_p = 0.1f;
  tiny_top_p.top_p = 0;
  SamplingOptions all = plain(1.7f);
  all.top_k = 60;
  all.top_p = 0.8f;
  all.min_p = 0.02f;
  SamplingOptions penalties = all;
  penalties.repeat_penalty = 1.3f;
  penalties.frequency_penalty = 0.4f;
  penalties.presence_penalty = 0.2f;
  penalties.repeat_last_n = 6;
  SamplingOptions whole_penalties = penalties;
  whole_penalties.repeat_last_n = -1;
  SamplingOptions biases = penalties;
  biases.top_p = 1;
  // Of some_logits(5) the likeliest is gone and two others are raised, one of them in two parts.
  const std::vector<float> logits = some_logits(5);
  const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
  biases.logit_bias = {{static_cast<Token>(likeliest), -std::numeric_limits<float>::infinity()},
                       {3, 7 - logits[3]},
                       {8, 4},
                       {8, 3 - logits[8]}};
  return {{"defaults", defaults},
          {"temperature_only", plain(0.5f)},
          {"hot", plain(2)},
          {"top_k", top_k},
          {"large_top_k", large_top_k},
          {"top_p", top_p},
          {"top_p_zero", tiny_top_p},
          {"min_p", min_p},
          {"all", all},
          {"penalties", penalties},
          {"whole_penalties", whole_penalties},
          {"biases", biases}};
}

class Draws : public ::testing::TestWithParam<NamedOptions> {};
INSTANTIATE_TEST_SUITE_P(Options, Draws, ::testing::ValuesIn(cases()), PrintedName());

TEST_P(Draws, FollowTheTranscription) {
  const std::vector<float> logits = some_logits(5);
  const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  // The likeliest token often in the history, so that penalties reorder; its oldest uses are forgotten again.
  const auto top = static_cast<Token>(best);
  expect_draws_follow(GetParam().options, {top, top, 3, top, 8, top, 3, 1, top});
}

TEST_P(Draws, TheSameSeedGivesTheSameTokens) {
  SamplingOptions options = GetParam().options;
  const auto draw = [&](std::uint32_t seed) {
    options.seed = seed;
    Sampler sampler(options);
    std::vector<Token> tokens;
    for (int i = 0; i < 60; ++i) {
      tokens.push_back(sampler.sample(some_logits(static_cast<std::uint64_t>(i))));
      sampler.accept(tokens.back());
    }
    return tokens;
  };
  EXPECT_EQ(draw(1), draw(1));
  // libllama's own word for "a random seed".
  EXPECT_EQ(draw(0xFFFFFFFF), draw(0xFFFFFFFF));
  if (options.top_p > 0) {
    EXPECT_NE(draw(1), draw(2));
  }
}

TEST_P(Draws, ACloneGoesOnAsItsOriginal) {
  SamplingOptions options = GetParam().options;
  Sampler sampler(options);
  const auto step = [](Sampler& one, int i) {
    const Token token = one.sample(some_logits(static_cast<std::uint64_t>(i)));
    one.accept(token);
    return token;
  };
  for (int i = 0; i < 20; ++i) step(sampler, i);
  Sampler copy = sampler.clone();
  std::vector<Token> a, b;
  for (int i = 20; i < 60; ++i) a.push_back(step(sampler, i));
  for (int i = 20; i < 60; ++i) b.push_back(step(copy, i));
  EXPECT_EQ(a, b);
}

TEST(Deciding, TheLargestLogitsGiveTheTokensOfAll) {
  for (const NamedOptions& named : cases()) {
    SCOPED_TRACE(named.name);
    Sampler all(named.options), largest(named.options);
    const int count = largest.deciding();
    EXPECT_EQ(count > 0, named.options.logit_bias.empty() && named.options.repeat_penalty == 1 &&
                             named.options.presence_penalty == 0 && named.options.frequency_penalty == 0 &&
                             (named.options.temperature == 0 || named.options.top_k > 0));
    if (count == 0) continue;
    for (int step = 0; step < 60; ++step) {
      const std::vector<float> logits = some_logits(static_cast<std::uint64_t>(step));
      std::vector<TokenLogit> top;
      for (int token = 0; token < kVocabulary; ++token) top.push_back({token, logits[static_cast<std::size_t>(token)]});
      const auto kept = static_cast<std::size_t>(std::min(count + step % 3, kVocabulary));  // more do no harm
      std::sort(top.begin(), top.end(), [](const auto& a, const auto& b) { return a.logit > b.logit; });
      top.resize(kept);
      std::sort(top.begin(), top.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
      std::vector<std::pair<std::int32_t, float>> pairs;
      for (const TokenLogit& each : top) pairs.emplace_back(each.token, each.logit);
      const reference::Drawn foretold = reference::drawn(pairs, largest.next_draw(0));
      const Draw second = largest.next_draw(1);
      const Token token = all.sample(logits);
      EXPECT_EQ(largest.sample_largest(top), token);
      EXPECT_TRUE(foretold.token == token || foretold.nearest < 1e-5);
      EXPECT_EQ(second.uniform, largest.next_draw(0).uniform);
      all.accept(token);
      largest.accept(token);
    }
  }
}

TEST(Greedy, IsTheLargestLogitAndOfEqualOnesTheFirst) {
  Sampler sampler{SamplingOptions{}};
  std::vector<float> logits = some_logits(3);
  EXPECT_EQ(sampler.sample(logits), std::max_element(logits.begin(), logits.end()) - logits.begin());
  logits[1700] = logits[40] = logits[900] = 50;
  EXPECT_EQ(sampler.sample(logits), 40);
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sampler.sample(logits), 40);
  const float one[] = {-std::numeric_limits<float>::infinity(), -5.0f};
  EXPECT_EQ(sampler.sample(one), 1);
}

TEST(Greedy, PenaltiesApplyAndTiesStillGoToTheFirst) {
  SamplingOptions options;
  options.repeat_penalty = 2;
  options.repeat_last_n = 2;
  Sampler sampler(options);
  const std::vector<float> logits{1, 4, 3, 2, -1};
  EXPECT_EQ(sampler.sample(logits), 1);
  sampler.accept(1);
  EXPECT_EQ(sampler.sample(logits), 2) << "4 / 2 against 3";
  sampler.accept(2);
  EXPECT_EQ(sampler.sample(logits), 1) << "2, 1.5 and 2: the first";
  sampler.accept(3);
  EXPECT_EQ(sampler.sample(logits), 1) << "the use of 1 is out of sight";
}

TEST(Greedy, PenaltiesFollowTheTranscription) {
  SamplingOptions options;
  options.repeat_penalty = 1.2f;
  options.frequency_penalty = 0.7f;
  options.presence_penalty = 0.3f;
  options.repeat_last_n = 16;
  Sampler sampler(options);
  SamplingOptions transcribed = options;
  transcribed.temperature = 1;
  transcribed.top_k = 1;
  std::vector<Token> history;
  const std::vector<float> logits = some_logits(17);
  for (int i = 0; i < 100; ++i) {
    const Token token = sampler.sample(logits);
    ASSERT_EQ(token, distribution(logits, transcribed, history)[0].token) << i;
    sampler.accept(token);
    history.push_back(token);
  }
}

TEST(Greedy, OpenAisPenaltiesFollowTheTranscription) {
  SamplingOptions options;
  options.repeat_penalty = 1.15f;
  options.frequency_penalty = 0.6f;
  options.presence_penalty = 0.9f;
  options.repeat_last_n = -1;
  options.penalise_prompt = false;
  const std::vector<float> logits = some_logits(17);
  const auto best = static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<Token> history(90, best);  // often in the prompt: the repeat penalty alone sees it
  for (Token token = 0; token < 60; ++token) history.push_back(token);
  const std::size_t prompt = history.size();
  Sampler sampler(options);
  sampler.accept_prompt(history);
  SamplingOptions transcribed = options;
  transcribed.temperature = 1;
  transcribed.top_k = 1;
  for (int i = 0; i < 150; ++i) {
    const Token token = sampler.sample(logits);
    ASSERT_EQ(token, distribution(logits, transcribed, history, prompt)[0].token) << i;
    sampler.accept(token);
    history.push_back(token);
  }
}

TEST(Greedy, BiasesMoveTheChoiceAndTiesStillGoToTheFirst) {
  const std::vector<float> logits{1, 4, 3, 2, -1};
  const auto choice = [&](std::vector<TokenBias> biases) {
    SamplingOptions options;
    options.logit_bias = std::move(biases);
    Sampler sampler(options);
    std::vector<TokenProbability> all;
    sampler.distribution(logits, all);
    EXPECT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].token, sampler.sample(logits));
    return all[0].token;
  };
  const float never = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(choice({{2, 0.5f}}), 1);
  EXPECT_EQ(choice({{2, 1.5f}}), 2);
  EXPECT_EQ(choice({{0, 3}}), 0) << "4 and 4: the first";
  EXPECT_EQ(choice({{1, never}}), 2);
  EXPECT_EQ(choice({{1, never}, {2, never}, {1, 100}}), 3) << "nothing raises what is forbidden";
}

TEST(Sampler, BannedTokensComeWhenTheAnswerIsLongEnough) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits{9, 1, 8, 0, -inf};
  const std::vector<Token> banned{0, 2};
  for (const float temperature : {0.0f, 1.0f}) {
    Sampler sampler(plain(temperature));
    sampler.ban(banned, 3);
    sampler.accept_prompt(std::vector<Token>{1, 1, 1, 1});
    std::vector<TokenProbability> all;
    for (int i = 0; i < 3; ++i) {
      Sampler copy = sampler.clone();
      for (int draw = 0; draw < 300; ++draw) EXPECT_THAT(copy.sample(logits), ::testing::AnyOf(1, 3));
      copy.distribution(logits, all);
      for (const TokenProbability& each : all) EXPECT_THAT(each.token, ::testing::AnyOf(1, 3));
      sampler.accept(1);
    }
    sampler.distribution(logits, all);
    EXPECT_EQ(all[0].token, 0);
    EXPECT_EQ(sampler.clone().sample(std::vector<float>{900, 1, 8, 0, -inf}), 0);
  }
  Sampler sampler(plain(1));
  sampler.ban(std::vector<Token>{0, 1, 2, 3}, 1);
  EXPECT_THROW(sampler.sample(logits), UserError) << "the only token left has no chance";
}

TEST(Sampler, LogitsWithoutAFiniteMaximumAreRefused) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float temperature : {0.0f, 1.0f}) {
    Sampler sampler(plain(temperature));
    const std::vector<float> nan(5, std::numeric_limits<float>::quiet_NaN()), none(5, -inf), infinite{1, inf};
    EXPECT_THROW(sampler.sample(nan), UserError);
    EXPECT_THROW(sampler.sample(none), UserError);
    EXPECT_THROW(sampler.sample(infinite), UserError);
    EXPECT_THROW(sampler.sample({}), InternalError);
  }
}

TEST(Sampler, ForbiddenTokensAreNeverDrawn) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> logits(50, -inf);
  logits[7] = 1;
  logits[9] = std::numeric_limits<float>::quiet_NaN();
  logits[30] = 0;
  Sampler sampler(plain(5));
  for (int i = 0; i < 2000; ++i) EXPECT_THAT(sampler.sample(logits), ::testing::AnyOf(7, 30));
}

TEST(Validate, NamesTheOptionTheValueAndTheCure) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  struct Bad {
    float SamplingOptions::*field;
    std::vector<float> values;
    const char* name;
  };
  const Bad bad[] = {{&SamplingOptions::temperature, {-0.5f, nan, inf, 1e-30f, 101}, "temperature"},
                     {&SamplingOptions::top_p, {-0.1f, 1.01f, nan, inf}, "top-p"},
                     {&SamplingOptions::min_p, {-0.1f, 1.01f, nan, inf}, "min-p"},
                     {&SamplingOptions::repeat_penalty, {0, -1, nan, inf}, "repeat penalty"},
                     {&SamplingOptions::frequency_penalty, {nan, inf, -inf}, "frequency penalty"},
                     {&SamplingOptions::presence_penalty, {nan, inf, -inf}, "presence penalty"}};
  for (const Bad& one : bad) {
    for (const float value : one.values) {
      SamplingOptions options;
      options.*one.field = value;
      try {
        validate(options);
        ADD_FAILURE() << one.name << " took " << value;
      } catch (const UserError& error) {
        EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr(one.name), HasSubstr("must be")));
      }
      EXPECT_THROW(Sampler{options}, UserError);
    }
  }
  SamplingOptions options;
  options.top_k = -1;
  EXPECT_THROW(validate(options), UserError);
  options = {};
  options.repeat_last_n = -2;
  EXPECT_THROW(validate(options), UserError);
  options.repeat_last_n = std::numeric_limits<int>::max();
  EXPECT_THROW(validate(options), UserError);
  for (const TokenBias bad_bias : {TokenBias{-1, 1}, {0, nan}, {0, inf}, {0, 1001}, {0, -1001}}) {
    options = {};
    options.logit_bias = {{5, -inf}, {5, 1000}, bad_bias};
    EXPECT_THAT([&] { validate(options); }, ::testing::ThrowsMessage<UserError>(HasSubstr("logit bias of token")));
    options.logit_bias.pop_back();
    EXPECT_NO_THROW(validate(options));
  }
  EXPECT_NO_THROW(validate(SamplingOptions{}));
}

}  // namespace
}  // namespace glimpse::text
