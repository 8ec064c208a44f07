// What requests ask of a pass on a GPU beside an answer: tokens from the largest logits, log-probabilities of a prompt,
// how far attention turns the stream. Skipped without a GPU.
#include <fstream>
#include <limits>

#include "glimpse/model/model.h"
#include "tests/engine/cuda_support.h"
#include "tests/engine/session_support.h"

namespace glimpse::engine {
namespace {

double logprob(std::span<const float> logits, Token token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return static_cast<double>(logits[static_cast<std::size_t>(token)]) - largest - std::log(sum);
}

/// Where log-probabilities are asked for the host has all logits, and chooses from them.
TEST_F(Cuda, TokensFromTheLargestLogitsAreThoseFromAll) {
  for (const auto& model : models()) {
    SCOPED_TRACE(model.string());
    Engine gpu(on_gpu(model));
    text::SamplingOptions greedy, some, few, all;
    some.temperature = 1;
    few.temperature = 0.7F;
    few.top_k = 5;
    few.top_p = 0.9F;
    all.temperature = 1;
    all.top_k = 0;
    for (const text::SamplingOptions& sampling : {greedy, some, few, all}) {
      std::vector<Request> requests;
      for (std::uint32_t seed = 1; seed <= 3; ++seed) {
        requests.push_back(request_for(gpu, 50 * seed, "full", seed));
        requests.back().sampling = sampling;
        requests.back().sampling.seed = seed;
      }
      const auto run = [&](bool read) {
        std::vector<RequestId> ids;
        for (Request request : requests) {
          if (read) request.logprobs = 0;
          ids.push_back(gpu.submit(request));
        }
        run_all(gpu);
        std::vector<std::vector<Token>> tokens;
        for (const RequestId id : ids) tokens.push_back(gpu.result(id).tokens);
        return tokens;
      };
      EXPECT_EQ(run(false), run(true)) << "temperature " << sampling.temperature << ", top-k " << sampling.top_k;
    }
  }
}

/// Greedy and sampled requests go a pass ahead of the host. Where log-probabilities are asked for each pass waits for
/// it.
TEST_F(Cuda, PassesThatAreQueuedAheadGiveTheSameTokens) {
  for (const auto& model : models()) {
    SCOPED_TRACE(model.string());
    EngineOptions options = on_gpu(model);
    options.sequences = 5;
    Engine gpu(options);
    const std::int64_t free = gpu.stats().pages_free;
    for (const std::string policy : {"full", "tidal", "kascade", "lychee-decode", "evosparse", "quest", "lessismore",
                                     "lychee-cluster", "clusterkv", "h2o"}) {
      SCOPED_TRACE(policy);
      std::vector<Request> requests;
      for (std::uint32_t seed = 1; seed <= 4; ++seed) {
        requests.push_back(request_for(gpu, 70 * seed, policy, seed));
        requests.back().max_tokens = 15 * seed;
        if (seed % 2 == 0) requests.back().sampling.temperature = 1;
      }
      const auto run = [&](bool waits) {
        std::vector<RequestId> ids;
        for (Request request : requests) {
          if (waits) request.logprobs = 0;
          ids.push_back(gpu.submit(request));
        }
        run_all(gpu);
        std::vector<Result> results;
        for (const RequestId id : ids) {
          results.push_back(gpu.result(id));
          gpu.release(id);
        }
        return results;
      };
      const std::vector<Result> waited = run(true);
      const auto expect_same = [&](const std::vector<Result>& results) {
        for (std::size_t i = 0; i < results.size(); ++i) {
          EXPECT_EQ(results[i].tokens, waited[i].tokens) << i;
          EXPECT_EQ(results[i].reason, waited[i].reason) << results[i].error;
          EXPECT_EQ(results[i].stats.attention.bytes_read, waited[i].stats.attention.bytes_read) << i;
        }
      };
      expect_same(run(false));
      EXPECT_EQ(gpu.stats().pages_free, free);
      // One that ends unforeseen takes its row back, and the others go on.
      std::string stop;
      for (std::size_t i = 20; i < 23; ++i) stop += gpu.tokenizer().piece(waited[3].tokens[i], false);
      requests[3].stop = {stop};
      std::vector<Result> stopped = run(false);
      EXPECT_EQ(stopped[3].reason, FinishReason::stop);
      EXPECT_LE(stopped[3].tokens.size(), 22U);
      EXPECT_TRUE(std::equal(stopped[3].tokens.begin(), stopped[3].tokens.end(), waited[3].tokens.begin()));
      stopped[3] = waited[3];
      expect_same(stopped);
      EXPECT_EQ(gpu.stats().pages_free, free);
    }
  }
}

/// What a pass ahead chooses by is the heat, and what it searches the trees, that the host has when it is told: then
/// sessions have the same bytes.
TEST_F(Cuda, HeatAndTreesOfPassesThatAreQueuedAhead) {
  EngineOptions options = on_gpu(reference::test_model("llama256"));
  options.sequences = 12;
  // Chunks leave their buffer behind 48 tokens, and tokens become clusters behind 320.
  for (const auto& [policy, tokens] :
       std::map<std::string, std::int64_t>{{"evosparse", 50}, {"lychee-cluster", 150}, {"clusterkv", 340}}) {
    for (const std::size_t requests : {1U, 12U}) {  // heat of twelve grows beyond its room between two passes
      SCOPED_TRACE(policy + " " + std::to_string(requests));
      struct Kept {
        std::vector<std::byte> session;
        std::int64_t bytes_read = 0, sparse_steps = 0;
        bool operator==(const Kept&) const = default;
      };
      const auto kept = [&](bool waits) {
        Engine gpu(options);
        std::vector<RequestId> ids;
        for (std::size_t i = 0; i < requests; ++i) {
          Request request = request_for(gpu, 470 + i, policy, static_cast<std::uint32_t>(i));
          request.plan = make(gpu, policy, budget("96"));
          request.max_tokens = tokens;
          request.keep = true;
          if (waits) request.logprobs = 0;
          ids.push_back(gpu.submit(request));
        }
        run_all(gpu);
        std::vector<Kept> all;
        for (const RequestId id : ids) {
          const AttentionStats stats = gpu.result(id).stats.attention;
          all.push_back({session_bytes(gpu.take(id).value()), stats.bytes_read, stats.sparse_steps});
        }
        return all;
      };
      const std::vector<Kept> ahead = kept(false);
      EXPECT_GE(ahead.front().sparse_steps, tokens - 1);
      EXPECT_TRUE(ahead == kept(true));
    }
  }
}

/// A request that is cancelled while a pass is queued ahead of it goes on as one that was not, whose trees may hold a
/// chunk less.
TEST_F(Cuda, TreesOfARequestThatIsCancelledGoOn) {
  Engine gpu(on_gpu(reference::test_model("llama256")));
  for (int steps = 70; steps < 82; ++steps) {
    SCOPED_TRACE(steps);
    Request request = request_for(gpu, 470, "lychee-cluster", 3);
    request.plan = make(gpu, "lychee-cluster", budget("96"));
    request.max_tokens = 200;
    request.keep = true;
    const RequestId id = gpu.submit(request);
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(gpu.step());
    gpu.cancel(id);
    request.max_tokens = static_cast<std::int64_t>(gpu.result(id).tokens.size());
    request.logprobs = 0;  // pass by pass
    const RequestId plain = gpu.submit(request);
    run_all(gpu);
    EXPECT_EQ(gpu.result(id).tokens, gpu.result(plain).tokens);
    Sequence there = gpu.take(id).value(), expected = gpu.take(plain).value();
    const std::vector<Token> more = random_tokens(40, gpu.tokenizer().size());
    EXPECT_TRUE(same_bits(decoded(there, more), decoded(expected, more)));
  }
}

/// Another caller's passes wait for the one that is in flight, and change nothing of it.
TEST_F(Cuda, PassesBetweenThoseThatAreQueuedAhead) {
  const auto model = reference::test_model("llama256");
  Engine gpu(on_gpu(model));
  Request request = request_for(gpu, 150, "tidal", 1);
  request.max_tokens = 60;
  const std::vector<Token> want = answered(gpu, request).tokens;
  const std::vector<Token> tokens = random_tokens(260, gpu.tokenizer().size());
  const auto by_hand = [&] {
    Sequence sequence = gpu.open(quest(gpu, "64"));
    sequence.prefill(std::span(tokens).first(250));
    return decoded(sequence, std::span(tokens).subspan(250));
  };
  const std::vector<float> alone = by_hand();
  const RequestId id = gpu.submit(request);
  for (int i = 0; gpu.step(); ++i) {
    if (i % 7 == 3) {
      EXPECT_TRUE(same_bits(by_hand(), alone)) << i;
    }
  }
  EXPECT_EQ(gpu.result(id).tokens, want);
}

/// More rows than a pass of the kernels for few rows: cuBLAS multiplies between launches that begin early.
TEST_F(Cuda, ManyRequestsTogetherGiveTheSameTokensAgain) {
  constexpr std::uint32_t kRequests = 90;
  EngineOptions options = on_gpu(reference::test_model("llama256"));
  options.context = 512;
  options.sequences = static_cast<int>(kRequests);
  const auto run = [&] {
    Engine gpu(options);
    std::vector<RequestId> ids;
    for (std::uint32_t i = 0; i < kRequests; ++i) {
      constexpr const char* kMethods[] = {"full", "tidal", "kascade", "quest", "lychee-decode", "lessismore", "h2o"};
      Request request = request_for(gpu, 60 + i % 20 * 4, kMethods[i % std::size(kMethods)], i);
      request.max_tokens = 80;  // so that many passes have a row of each
      ids.push_back(gpu.submit(request));
    }
    run_all(gpu);
    std::vector<std::vector<Token>> tokens;
    for (const RequestId id : ids) tokens.push_back(gpu.result(id).tokens);
    return tokens;
  };
  const auto first = run();
  for (const std::vector<Token>& tokens : first) EXPECT_EQ(tokens.size(), 80U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(), first);
}

TEST_F(Cuda, LogitsThatAreNotFiniteEndTheirRequest) {
  constexpr Token kDamaged = 77;  // whose embedding holds a NaN
  const auto file = std::filesystem::path(testing::TempDir()) / "cuda-damaged.gguf";
  {
    std::filesystem::copy_file(reference::test_model("llama256"), file,
                               std::filesystem::copy_options::overwrite_existing);
    const model::Model model(reference::test_model("llama256"));
    const std::size_t row = static_cast<std::size_t>(model.config().hidden) * sizeof(float);
    const std::string wanted(reinterpret_cast<const char*>(model.token_embedding().data) + kDamaged * row, row);
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(bytes), {}};
    const float bad = std::numeric_limits<float>::quiet_NaN();
    ASSERT_NE(all.find(wanted), std::string::npos);
    bytes.seekp(static_cast<std::streamoff>(all.find(wanted)));
    bytes.write(reinterpret_cast<const char*>(&bad), sizeof bad);
  }
  Engine gpu(on_gpu(file));  // the model's output has the same matrix
  const RequestId failed = gpu.submit(request_for(gpu, 100, "full", 1));
  run_all(gpu);
  EXPECT_EQ(gpu.result(failed).reason, FinishReason::failed);
  EXPECT_NE(gpu.result(failed).error.find("not finite"), std::string::npos) << gpu.result(failed).error;
  EXPECT_TRUE(gpu.result(failed).tokens.empty());
  std::filesystem::remove(file);
}

TEST_F(Cuda, LogprobsOfAPrompt) {
  for (const auto& model : models()) {
    SCOPED_TRACE(model.string());
    Engine gpu(on_gpu(model)), cpu(on_cpu(model));
    const double near = model == reference::embedded_model() ? 1.0 : 0.2;
    const double rounded = model == reference::embedded_model() ? 1e-2 : 5e-3;
    for (const std::size_t length : {2, 9, 64, 65, 700}) {
      SCOPED_TRACE(length);
      Request request = request_for(gpu, length, "full", 3);
      const std::vector<Token> answer = answered(gpu, request).tokens;
      request.prompt_logprobs = 2;
      const Result ours = answered(gpu, request), theirs = answered(cpu, request);
      EXPECT_EQ(ours.tokens, answer) << "asking for them changes nothing";
      ASSERT_EQ(ours.prompt_logprobs.size(), length - 1);
      Sequence sequence = gpu.open(make(gpu, "full"));
      std::vector<double> told;
      sequence.prefill(request.prompt, [&](std::int64_t at, std::span<const float> row) {
        const auto next = static_cast<std::size_t>(at) + 1;
        if (next < length) told.push_back(logprob(row, request.prompt[next]));
      });
      double apart = 0;
      for (std::size_t i = 0; i + 1 < length; ++i) {
        ASSERT_EQ(ours.prompt_logprobs[i].token, request.prompt[i + 1]);
        // Products of other numbers of rows, of a token that may be all but impossible: up to eight rows weights are as
        // they are, up to 128 scales and weights are bf16, beyond those weights. A real model has inputs that are large
        // beside the others.
        ASSERT_NEAR(ours.prompt_logprobs[i].logprob, told[i], 2e-2 + rounded * std::abs(told[i])) << i;
        apart += std::abs(ours.prompt_logprobs[i].logprob - theirs.prompt_logprobs[i].logprob);
        ASSERT_GE(ours.prompt_logprobs[i].top.size(), 2U);
        ASSERT_GE(ours.prompt_logprobs[i].top[0].logprob, ours.prompt_logprobs[i].logprob);
      }
      EXPECT_LT(apart / static_cast<double>(length - 1), near);
    }
  }
}

/// Whatever else the pass has, and however the prompt is cut.
TEST_F(Cuda, LogprobsOfAPromptBesideOthers) {
  EngineOptions options = on_gpu(reference::test_model("llama256"));
  options.prefill_chunk = 48;
  Engine gpu(options);
  Request asks = request_for(gpu, 300, "full", 4), other = request_for(gpu, 200, "tidal", 5);
  asks.prompt_logprobs = 1;
  const Result alone = answered(gpu, asks);
  const RequestId first = gpu.submit(other), second = gpu.submit(asks);
  run_all(gpu);
  EXPECT_EQ(gpu.result(first).tokens.size(), 12U);
  const std::vector<text::TokenLogprobs>& together = gpu.result(second).prompt_logprobs;
  ASSERT_EQ(together.size(), alone.prompt_logprobs.size());
  for (std::size_t i = 0; i < together.size(); ++i) {
    ASSERT_NEAR(together[i].logprob, alone.prompt_logprobs[i].logprob, 2e-2) << i;
  }
}

TEST_F(Cuda, AttentionTurnsTheStreamAsOnTheCpu) {
  for (const auto& model : models()) {
    SCOPED_TRACE(model.string());
    Engine gpu(on_gpu(model)), cpu(on_cpu(model));
    const std::vector<Token> tokens = random_tokens(620, gpu.tokenizer().size());
    const auto changes = [&](Engine& engine) {
      engine.measure_change(true);
      Sequence sequence = engine.open(make(engine, "full"));
      sequence.prefill(std::span(tokens).first(600));
      decoded(sequence, std::span(tokens).subspan(600));
      std::vector<double> found = engine.attention_change();
      engine.measure_change(false);
      EXPECT_EQ(engine.attention_change()[0], 0);
      return found;
    };
    const std::vector<double> ours = changes(gpu), theirs = changes(cpu);
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t layer = 0; layer < ours.size(); ++layer) {
      EXPECT_GT(ours[layer], 0);
      EXPECT_NEAR(ours[layer], theirs[layer], 0.05 * theirs[layer] + 1e-4) << "layer " << layer;
    }
  }
}

}  // namespace
}  // namespace glimpse::engine
