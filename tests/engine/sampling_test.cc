// Biases, least lengths and ends of answers, in every way of decoding: against a greedy loop by hand over a Sequence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;

constexpr float kNever = -std::numeric_limits<float>::infinity();

enum class Way : std::uint8_t { full, sparse, corrected, lossless };

struct Named {
  const char* name;
  Way way;
};
void PrintTo(const Named& row, std::ostream* out) {
  *out << row.name;
}

Request request_by(const Engine& engine, Way way, std::uint32_t seed) {
  Request request = request_for(engine, 300, way == Way::full ? "full" : "tidal", seed);
  request.max_tokens = 24;
  if (way == Way::corrected) request.correct_every = 5;
  if (way == Way::lossless) {
    request.lossless = true;
    request.draft_tokens = 3;
  }
  return request;
}

Token largest(std::span<const float> logits) {
  return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

using Change = std::function<void(std::size_t step, std::vector<float>& logits)>;

/// So many greedy tokens; `change` has the logits first. Lossless answers are dense decoding's.
std::vector<Token> by_hand(Engine& engine, const Request& request, std::size_t count, const Change& change) {
  Sequence sequence = engine.open(request.lossless ? make(engine, "full") : request.plan);
  std::span<const float> logits = sequence.prefill(request.prompt);
  std::vector<Token> answer;
  for (std::int64_t since = 0;;) {
    std::vector<float> changed(logits.begin(), logits.end());
    change(answer.size(), changed);
    answer.push_back(largest(changed));
    if (answer.size() == count) return answer;
    if (request.correct_every > 0 && since == request.correct_every) {
      sequence.correct(since);
      since = 0;
    }
    logits = sequence.decode(answer.back());
    ++since;
  }
}

class Ways : public ::testing::TestWithParam<Named> {
 protected:
  Engine engine_{options_for(reference::test_model("llama"))};
};

INSTANTIATE_TEST_SUITE_P(OfDecoding, Ways,
                         ::testing::Values(Named{"full", Way::full}, Named{"sparse", Way::sparse},
                                           Named{"corrected", Way::corrected}, Named{"lossless", Way::lossless}),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(Ways, BiasesMoveTheAnswer) {
  Request request = request_by(engine_, GetParam().way, 4);
  const std::vector<Token> plain = by_hand(engine_, request, 24, [](auto, auto&) {});
  EXPECT_EQ(alone(request), plain);
  // What was said first is forbidden, and two tokens are raised by a little.
  request.sampling.logit_bias = {{plain[0], kNever}, {plain[1], kNever}, {plain[2], kNever}, {11, 1.5F}, {30, 1}};
  const std::vector<Token> wanted = by_hand(engine_, request, 24, [&](auto, std::vector<float>& logits) {
    for (const text::TokenBias& bias : request.sampling.logit_bias) {
      logits[static_cast<std::size_t>(bias.token)] += bias.bias;
    }
  });
  EXPECT_NE(wanted, plain);
  EXPECT_EQ(alone(request), wanted);
}

TEST_P(Ways, NoAnswerEndsBeforeItsLeastNumberOfTokens) {
  Request request = request_by(engine_, GetParam().way, 6);
  request.ignore_end = false;
  std::vector<Token> ends;
  for (Token token = 0; token < engine_.tokenizer().size(); ++token) {
    if (engine_.tokenizer().ends_generation(token)) ends.push_back(token);
  }
  ASSERT_FALSE(ends.empty());
  request.sampling.logit_bias = {{ends[0], 1000}};  // it would end at once
  const auto result_of = [&](float temperature, std::int64_t least) {
    Engine engine(options_for(reference::test_model("llama")));
    request.sampling.temperature = temperature;
    request.min_tokens = least;
    const RequestId id = engine.submit(request);
    run_all(engine);
    return engine.result(id);
  };
  for (const float temperature : {0.0F, 0.7F}) {
    for (const std::int64_t least : {0, 1, 2, 7}) {
      const Result result = result_of(temperature, least);
      EXPECT_EQ(result.reason, FinishReason::end_of_text);
      EXPECT_EQ(std::ssize(result.tokens), least);
    }
  }
  const std::vector<Token> wanted = by_hand(engine_, request, 7, [&](auto, std::vector<float>& logits) {
    for (const Token token : ends) logits[static_cast<std::size_t>(token)] = kNever;
  });
  EXPECT_EQ(result_of(0, 7).tokens, wanted);
  request.ignore_end = true;
  EXPECT_EQ(result_of(0, 7).tokens, std::vector<Token>(24, ends[0])) << "it is a token like others then";
}

TEST(Sampling, EachRequestOfABatchHasItsOwn) {
  Engine engine(options_for(reference::test_model("llama")));
  std::vector<RequestId> ids;
  std::vector<Request> requests;
  for (const Way way : {Way::full, Way::sparse, Way::lossless}) {
    Request request = request_by(engine, way, 10 + static_cast<std::uint32_t>(way));
    const std::vector<Token> plain = alone(request);
    request.sampling.logit_bias = {{plain[0], kNever}, {plain[5], kNever}};
    request.sampling.temperature = way == Way::sparse ? 0.8F : 0;
    request.sampling.penalise_prompt = false;
    request.sampling.frequency_penalty = way == Way::full ? 0.5F : 0;
    requests.push_back(std::move(request));
  }
  for (const Request& request : requests) ids.push_back(engine.submit(request));
  run_all(engine);
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(engine.result(ids[i]).tokens, alone(requests[i])) << i;
}

TEST(Sampling, AStopStringCountsBehindTheLeastNumberOfTokens) {
  for (const Way way : {Way::sparse, Way::lossless}) {
    Engine engine(options_for(reference::test_model("llama")));
    Request request = request_by(engine, way, 3);
    const std::vector<Token> whole = alone(request);
    // A token's text that comes twice, the second time behind a few others.
    std::vector<std::string> pieces;
    for (const Token token : whole) pieces.push_back(engine.tokenizer().piece(token));
    request.stop = {pieces[1]};
    request.min_tokens = 2;
    std::size_t end = 2;
    std::string behind;
    while (end < whole.size() && behind.find(request.stop[0]) == std::string::npos) behind += pieces[end++];
    const bool stops = behind.find(request.stop[0]) != std::string::npos;
    const RequestId id = engine.submit(request);
    run_all(engine);
    EXPECT_EQ(engine.result(id).reason, stops ? FinishReason::stop : FinishReason::length);
    EXPECT_EQ(engine.result(id).tokens.size(), stops ? end - 1 : whole.size());
    request.min_tokens = 0;
    const RequestId early = engine.submit(request);
    run_all(engine);
    EXPECT_EQ(engine.result(early).reason, FinishReason::stop);
    EXPECT_LE(engine.result(early).tokens.size(), 1u);
  }
}

TEST(Sampling, RefusesWhatCannotBe) {
  Engine engine(options_for(reference::test_model("llama")));
  const auto expect_refused = [&](const std::function<void(Request&)>& change, const char* part) {
    Request request = request_for(engine, 20, "full", 1);
    change(request);
    EXPECT_THAT([&] { engine.submit(request); }, ::testing::ThrowsMessage<UserError>(HasSubstr(part)));
  };
  expect_refused([](Request& request) { request.min_tokens = -1; }, "at least -1 tokens");
  expect_refused([](Request& request) { request.min_tokens = 13; }, "at least 13 tokens and at most 12");
  const Token size = engine.tokenizer().size();
  expect_refused([&](Request& request) { request.sampling.logit_bias = {{size, 1}}; }, "the vocabulary has");
  expect_refused([](Request& request) { request.sampling.logit_bias = {{0, 2000}}; }, "-inf forbids");
  // Nothing left to say ends the request, not the engine.
  Request none = request_for(engine, 20, "full", 1);
  for (Token token = 0; token < size; ++token) none.sampling.logit_bias.push_back({token, kNever});
  const RequestId id = engine.submit(none), other = engine.submit(request_for(engine, 20, "full", 2));
  run_all(engine);
  EXPECT_EQ(engine.result(id).reason, FinishReason::failed);
  EXPECT_THAT(engine.result(id).error, HasSubstr("no token is left"));
  EXPECT_EQ(engine.result(other).reason, FinishReason::length);
}

}  // namespace
}  // namespace glimpse::engine
