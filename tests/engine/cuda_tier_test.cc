// The host tier on a GPU: what is attended does not depend on where pages wait, and what moves is what moves on the
// CPU.
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/cuda_support.h"

namespace glimpse::engine {
namespace {

constexpr std::size_t kPrompt = 500, kAll = 564;

/// So few resident that every step sends some away. Without the tier they search the same digests (bounds hang on
/// pages then, in another type).
std::vector<Method> waiting_methods() {
  return {{"arkvale", {{"resident", "128"}, {"digest", "sphere"}}},
          {"shadowkv", {{"resident", "128"}, {"outliers", "2"}, {"rank", "0"}}},
          {"shadowkv", {{"resident", "128"}, {"outliers", "2"}, {"rank", "12"}}}};
}

std::int64_t pages_free(Engine& engine) {
  return engine.stats().pages_free;
}

TEST_F(Cuda, WhatWaitsIsReadAsWhatDoesNot) {
  for (const auto& [model, cache] :
       {std::pair("llama256", KvType::bf16), {"qwen3", KvType::bf16}, {"llama256", KvType::q8_0}}) {
    Engine gpu(on_gpu(reference::test_model(model), cache)), cpu(on_cpu(reference::test_model(model), cache));
    const std::vector<Token> tokens = random_tokens(kAll, gpu.tokenizer().size());
    const std::span<const Token> rest = std::span(tokens).subspan(kPrompt);
    for (const Method& method : waiting_methods()) {
      SCOPED_TRACE(std::string(model) + ", " + std::string(name(cache)) + ", " + method.name);
      const plan::Plan plan = plan_of(gpu, method, "128");
      Sequence plain = gpu.open(without_tier(plan));
      plain.prefill(std::span(tokens).first(kPrompt));
      const auto expected = decoded(plain, rest);
      const std::int64_t free = pages_free(gpu);
      Sequence sequence = gpu.open(plan), there = cpu.open(plan_of(cpu, method, "128"));
      for (Sequence* one : {&sequence, &there}) one->prefill(std::span(tokens).first(kPrompt));
      EXPECT_FALSE(sequence.stats().resident_tokens.has_value());
      EXPECT_TRUE(same_bits(decoded(sequence, rest), expected));
      decoded(there, rest);
      const AttentionStats &ours = sequence.stats(), &theirs = there.stats();
      EXPECT_GT(ours.recalled_pages, 0);
      EXPECT_EQ(ours.recalled_bytes, ours.recalled_pages * 16 * static_cast<std::int64_t>(gpu.row_pair_bytes()));
      EXPECT_EQ(plain.stats().recalled_pages, 0);
      EXPECT_LT(free - pages_free(gpu), free * 3 / 4) << "pages were given back";
      if (std::string(method.name) == "arkvale") {
        EXPECT_EQ(ours.recalled_pages + ours.resident_hits, theirs.recalled_pages + theirs.resident_hits);
        EXPECT_EQ(ours.resident_tokens, theirs.resident_tokens);
      }
      // A key in another block moves a page or two.
      EXPECT_NEAR(static_cast<double>(ours.recalled_pages), static_cast<double>(theirs.recalled_pages),
                  0.1 * static_cast<double>(theirs.recalled_pages));
    }
  }
}

TEST_F(Cuda, AuditsCorrectionsAndForksReadWhatWaits) {
  Engine gpu(on_gpu(reference::test_model("llama256")));
  const std::vector<Token> tokens = random_tokens(kAll, gpu.tokenizer().size());
  const std::span<const Token> middle = std::span(tokens).subspan(kPrompt, 32), rest = std::span(tokens).last(32);
  const auto audited = [&](Sequence& sequence) {
    std::vector<float> all;
    for (std::size_t i = 0; i < middle.size(); ++i) {
      const auto logits = sequence.decode(middle[i], i % 4 == 3);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  };
  for (const Method& method : waiting_methods()) {
    SCOPED_TRACE(method.name);
    const plan::Plan plan = plan_of(gpu, method, "128");
    Sequence plain = gpu.open(without_tier(plan)), sequence = gpu.open(plan);
    for (Sequence* one : {&plain, &sequence}) one->prefill(std::span(tokens).first(kPrompt));
    const auto expected = audited(plain);
    EXPECT_TRUE(same_bits(audited(sequence), expected));
    EXPECT_GT(sequence.stats().recalled_pages, 0);
    EXPECT_EQ(sequence.stats().audited.mean, plain.stats().audited.mean);
    EXPECT_EQ(sequence.stats().audited.least, plain.stats().audited.least);
    for (const char* policy : {"full", "quest", "h2o"}) {
      const plan::Plan other = plan_of(gpu, {policy, {}}, "160");
      Sequence a = plain.fork(other), b = sequence.fork(other);
      EXPECT_TRUE(same_bits(decoded(b, rest), decoded(a, rest))) << policy;
    }
    Sequence early = sequence.fork(plan);
    Sequence early_plain = plain.fork(without_tier(plan));
    EXPECT_TRUE(same_bits(decoded(early, rest), decoded(early_plain, rest)));
    for (Sequence* one : {&plain, &sequence}) one->correct(kPrompt / 2);
    Sequence fork = sequence.fork(plan);
    const auto after = decoded(plain, rest);
    EXPECT_TRUE(same_bits(decoded(fork, rest), after));
    EXPECT_TRUE(same_bits(decoded(sequence, rest), after));
  }
}

/// Others in the batch are audited, read feedback, or read their scores late: rows that wait are none of theirs.
TEST_F(Cuda, WhatWaitsBesideOtherMethods) {
  const auto together = [](bool waits, const Method& method) {
    Engine gpu(on_gpu(reference::test_model("llama256")));
    std::vector<RequestId> ids;
    for (const char* other : {"tidal", "h2o", "evosparse", "razor"}) {
      Request request = request_for(gpu, 300, other, 3);
      request.audit_every = std::string(other) == "tidal" ? 2 : 0;
      request.max_tokens = 24;
      ids.push_back(gpu.submit(request));
    }
    Request request = request_for(gpu, 400, "full", 9);
    const plan::Plan plan = plan_of(gpu, method, "128");
    request.plan = waits ? plan : without_tier(plan);
    request.max_tokens = 24;
    ids.push_back(gpu.submit(request));
    run_all(gpu);
    EXPECT_EQ(gpu.result(ids.back()).stats.attention.recalled_pages > 0, waits);
    std::vector<std::vector<Token>> tokens;
    for (const RequestId id : ids) {
      EXPECT_EQ(gpu.result(id).tokens.size(), 24U) << gpu.result(id).error;
      tokens.push_back(gpu.result(id).tokens);
    }
    return tokens;
  };
  for (const Method& method : waiting_methods()) {
    SCOPED_TRACE(method.name);
    EXPECT_EQ(together(true, method), together(false, method));
  }
}

TEST_F(Cuda, NothingWaitsBetweenLosslessDrafts) {
  Engine gpu(on_gpu(reference::test_model("llama256")));
  Request request = request_for(gpu, kPrompt, "full", 5);
  request.max_tokens = 32;
  const std::vector<Token> dense = answered(gpu, request).tokens;
  for (const Method& method : waiting_methods()) {
    SCOPED_TRACE(method.name);
    request.plan = plan_of(gpu, method, "128");
    request.lossless = true;
    const Result& result = answered(gpu, request);
    EXPECT_EQ(result.tokens, dense);  // but for near ties, of which there are none here
    EXPECT_EQ(result.stats.attention.recalled_pages, 0);
  }
}

/// Requests that do not fit together: the younger one's pages wait, and it goes on.
TEST_F(Cuda, PreemptedRequestsComeBack) {
  for (const Method& method : {Method{"full", {}}, Method{"arkvale", {{"resident", "128"}}}, Method{"tidal", {}}}) {
    SCOPED_TRACE(method.name);
    EngineOptions options = on_gpu(reference::test_model("llama256"));
    options.context = 1024;
    options.sequences = 1;
    options.prefill_chunk = 128;
    Engine gpu(options);
    Request old = request_for(gpu, 500, "full", 1), young = request_for(gpu, 400, "full", 2);
    young.plan = plan_of(gpu, method, "128");
    old.max_tokens = young.max_tokens = 300;
    old.ignore_end = young.ignore_end = true;
    const RequestId first = gpu.submit(old), second = gpu.submit(young);
    run_all(gpu);
    for (const RequestId id : {first, second}) {
      EXPECT_EQ(gpu.result(id).reason, FinishReason::length) << gpu.result(id).error;
      EXPECT_EQ(gpu.result(id).tokens.size(), 300U);
    }
    EXPECT_GT(gpu.stats().preemptions, 0);
  }
}

}  // namespace
}  // namespace glimpse::engine
