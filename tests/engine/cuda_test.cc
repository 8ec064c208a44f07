// The engine on a GPU against the engine on the CPU, which logits_test.cc holds against libllama. Skipped without a
// GPU.
#include <set>

#include "tests/engine/cuda_support.h"

namespace glimpse::engine {
namespace {

/// False where the number of tokens in a set depends on which are chosen: chunks differ in length, and lists overlap.
bool counts_alike(const plan::Plan& plan) {
  return std::none_of(plan.selectors.begin(), plan.selectors.end(), [](const plan::Selector& selector) {
    if (selector.terms.empty()) return false;
    const bool open = selector.terms.back().budget.has_value();  // nothing takes all that is left
    return open || selector.terms.front().source == plan::Source::chunk_tree;
  });
}
/// True where sets come from clusters of keys: the devices draw other first centroids, so that what they say lies as
/// far apart as two sets do. ClustersGoOn and TreesGoOn have both search the same.
bool clusters(const plan::Plan& plan) {
  return std::any_of(plan.selectors.begin(), plan.selectors.end(), [](const plan::Selector& selector) {
    if (selector.terms.empty()) return false;
    const plan::Term& term = selector.terms.front();
    return term.source == plan::Source::token_clusters ||
           (term.source == plan::Source::chunk_tree && !term.index.chunk_bounds);
  });
}
/// True where few blocks are chosen by what says little of their keys, so that another one of a near tie gives another
/// answer: random gates, and spheres. TracedBlocksAreThoseOfTheirGates and TracedSetsAreTheBestOfTheirKeys say that
/// the right ones are chosen.
bool chooses_roughly(const plan::Plan& plan) {
  return plan.policy == "seer" || std::any_of(plan.selectors.begin(), plan.selectors.end(), [](const auto& selector) {
           return !selector.terms.empty() && selector.terms.front().index.digest == plan::Digest::sphere;
         });
}
/// Rows of V that a run read are those that another one read, or near them.
void expect_rows(const plan::Plan& plan, std::int64_t ours, std::int64_t theirs) {
  const double share = counts_alike(plan) ? 0 : plan.policy == "evosparse" ? 0.1 : 0.03;
  EXPECT_NEAR(static_cast<double>(ours), static_cast<double>(theirs), share * static_cast<double>(theirs));
}

TEST_F(Cuda, LogitsAreTheCpus) {
  for (const auto& model : models()) {
    SCOPED_TRACE(model.string());
    Engine gpu(on_gpu(model)), cpu(on_cpu(model));
    const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
    for (const std::size_t prompt : {1, 7, 8, 9, 300, 700}) {
      SCOPED_TRACE(prompt);
      const Forced ours = forced(gpu, make(gpu, "full"), prompt, 6);
      const Forced theirs = forced(cpu, make(cpu, "full"), prompt, 6);
      EXPECT_LT(divergence(ours.logits, theirs.logits, width),
                model == reference::embedded_model() ? kNearEmbedded : kNear);
    }
  }
}

TEST_F(Cuda, EveryTypeOfWeightsIsConverted) {
  for (const char* type : {"bf16", "f16", "q8_0", "q6_K", "q5_K", "q5_1", "q5_0", "q4_K", "q4_1", "q4_0", "q3_K",
                           "q2_K", "iq4_nl", "iq4_xs", "iq3_s"}) {
    SCOPED_TRACE(type);
    const auto model = reference::test_model(std::string("llama256-") + type);
    Engine gpu(on_gpu(model)), cpu(on_cpu(model));
    for (const std::size_t prompt : {9, 24, 32, 33, 60}) {  // each takes other products
      const Forced ours = forced(gpu, make(gpu, "full"), prompt, 20);
      const Forced theirs = forced(cpu, make(cpu, "full"), prompt, 20);
      const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
      EXPECT_LT(divergence(ours.logits, theirs.logits, width), kNearQuantised) << prompt << " tokens";
    }
  }
}

/// Of small models: what few tokens of random text say of a real one is too near.
TEST_F(Cuda, MethodsReadWhatTheyReadOnTheCpu) {
  for (const auto& model : {reference::test_model("llama256"), reference::test_model("qwen3")}) {
    Engine gpu(on_gpu(model)), cpu(on_cpu(model));
    const auto width = static_cast<std::size_t>(cpu.tokenizer().size());
    const Forced dense = forced(cpu, make(cpu, "full"), 600, 20);
    for (const Method& method : methods()) {
      for (const char* tokens : {"96", "20%"}) {
        SCOPED_TRACE(model.filename().string() + ", " + method.name + " at " + tokens);
        const Forced ours = forced(gpu, plan_of(gpu, method, tokens), 600, 20);
        const Forced theirs = forced(cpu, plan_of(cpu, method, tokens), 600, 20);
        // Of near scores another one may be in the set.
        const double apart = divergence(ours.logits, theirs.logits, width);
        // What is forgotten by a near tie stays so, heat remembers one for long, and clusters of keys that differ in
        // the last digits may be others (TreesGoOn has both devices search the same).
        const plan::Plan plan = plan_of(cpu, method, tokens);
        const bool strays = plan::forgets(plan) || (plan::searches_index(plan) && !counts_alike(plan)) ||
                            clusters(plan) || chooses_roughly(plan);
        const bool long_lived = plan.policy == "evosparse" || plan.policy == "kascade";  // sets that other layers read
        const double near = long_lived ? 0.15 : 0.05;
        EXPECT_LT(apart, clusters(plan) ? 0.6 : strays ? 0.4 : near);
        if (ours.stats.sparse_steps > 0 && !clusters(plan)) {
          EXPECT_LT(apart, (strays ? 0.9 : 0.5) * divergence(dense.logits, theirs.logits, width));
        }
        expect_rows(plan, ours.stats.v_rows, theirs.stats.v_rows);
        if (counts_alike(plan)) {
          EXPECT_GE(ours.stats.k_rows,
                    theirs.stats.k_rows);  // what is scored and sets are made of in one layer is read twice
        }
        EXPECT_EQ(ours.stats.dense_k_rows, theirs.stats.dense_k_rows);
        EXPECT_EQ(ours.stats.sparse_steps, theirs.stats.sparse_steps);
        EXPECT_EQ(ours.stats.dense_steps, theirs.stats.dense_steps);
      }
    }
  }
}

TEST_F(Cuda, AuditsMeasureWhatTheCpusMeasure) {
  Engine gpu(on_gpu(reference::test_model("llama256"))), cpu(on_cpu(reference::test_model("llama256")));
  const std::vector<Token> tokens = random_tokens(420, gpu.tokenizer().size());
  for (const Method& method : methods()) {
    SCOPED_TRACE(method.name);
    const auto audited = [&](Engine& engine) {
      Sequence sequence = engine.open(plan_of(engine, method, "96"));
      sequence.prefill(std::span(tokens).first(400));
      for (std::size_t i = 400; i < tokens.size(); ++i) sequence.decode(tokens[i], i % 2 == 0);
      return sequence.stats();
    };
    const AttentionStats ours = audited(gpu), theirs = audited(cpu);
    EXPECT_EQ(ours.audits, 10);
    EXPECT_EQ(ours.audits, theirs.audits);
    EXPECT_EQ(ours.audited.sets, theirs.audited.sets);
    const bool others = clusters(plan_of(cpu, method, "96"));
    EXPECT_NEAR(ours.audited.mean, theirs.audited.mean, others ? 0.05 : 0.02);
    EXPECT_NEAR(ours.audited.least, theirs.audited.least, others ? 0.3 : 0.1);
    expect_rows(plan_of(cpu, method, "96"), ours.v_rows, theirs.v_rows);
  }
}

TEST_F(Cuda, ABudgetThatCoversTheContextIsDense) {
  Engine gpu(on_gpu(reference::test_model("llama256")));
  const Forced dense = forced(gpu, make(gpu, "full"), 300, 10);
  for (const Method& method : methods()) {
    SCOPED_TRACE(method.name);
    EXPECT_TRUE(same_bits(forced(gpu, plan_of(gpu, method, "4096"), 300, 10).logits, dense.logits));
  }
}

TEST_F(Cuda, TwoRunsGiveTheSameBits) {
  for (const Method& method : methods()) {
    SCOPED_TRACE(method.name);
    Engine once(on_gpu(reference::test_model("llama256"))), again(on_gpu(reference::test_model("llama256")));
    const plan::Plan plan = plan_of(once, method, "64");
    EXPECT_TRUE(same_bits(forced(once, plan, 500, 20).logits, forced(again, plan, 500, 20).logits));
  }
}

TEST_F(Cuda, WhatDoesNotRunIsRefusedByName) {
  Engine gpu(on_gpu(reference::test_model("llama256")));
  try {
    gpu.open(make(gpu, "evosparse", budget("400000", {{"retrieval-blocks", "20000"}})));
    ADD_FAILURE() << "it runs";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("leave out --device"), std::string::npos) << error.what();
  }
}

TEST_F(Cuda, RequestsTogetherAreAsAlone) {
  const auto model = reference::test_model("llama256");
  using Wanted = std::vector<std::pair<std::string, std::size_t>>;
  int equal = 0;
  // Products round alike for up to eight rows; attention divides its work otherwise.
  for (const Wanted& wanted :
       {Wanted{{"full", 40}, {"tidal", 600}, {"streaming", 300}, {"quest", 500}, {"h2o", 350}, {"evosparse", 420}},
        Wanted{{"lychee-cluster", 480}, {"lychee-decode", 450}, {"razor", 430}, {"lessismore", 410}, {"tidal", 33}}}) {
    Engine gpu(on_gpu(model));
    std::vector<Request> requests;
    for (const auto& [name, length] : wanted) {
      requests.push_back(request_for(gpu, length, name, static_cast<std::uint32_t>(length)));
    }
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(gpu.submit(request));
    run_all(gpu);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(gpu.result(ids[i]).reason, FinishReason::length);
      equal += gpu.result(ids[i]).tokens == alone(requests[i], on_gpu(model)) ? 1 : 0;
    }
  }
  EXPECT_GE(equal, 8);  // of 11; prompts' products round otherwise with other rows beside theirs
}

/// A set as a trace tells of it.
struct Traced {
  int layer = 0, head = 0;
  std::vector<float> query;
  std::vector<std::int32_t> set;
};

/// From now on adds the sets that a sequence makes to `traced`.
void trace_sets(Sequence& sequence, std::vector<Traced>& traced) {
  sequence.on_sets([&traced](const SetTrace& trace) {
    if (!trace.publishes || trace.publishes_all) return;
    traced.push_back({trace.layer,
                      trace.kv_head,
                      {trace.query.begin(), trace.query.end()},
                      {trace.published.begin(), trace.published.end()}});
  });
}

/// The best of what each block may score, over the group, by the min and max of the block's keys: Quest; or by the
/// sphere around their middle that holds them all: ArkVale.
std::vector<double> block_bounds(const Sequence& sequence, const Traced& of, std::size_t dim, std::int64_t blocks,
                                 std::int64_t size, bool sphere) {
  std::vector<double> best;
  for (std::int64_t block = 0; block < blocks; ++block) {
    std::vector<double> least(dim, 1e30), most(dim, -1e30);
    std::vector<std::vector<float>> keys;
    for (std::int64_t at = size * block; at < size * (block + 1); ++at) {
      keys.push_back(sequence.key(of.layer, of.head, at));
      for (std::size_t i = 0; i < dim; ++i) {
        least[i] = std::min(least[i], static_cast<double>(keys.back()[i]));
        most[i] = std::max(most[i], static_cast<double>(keys.back()[i]));
      }
    }
    double radius = 0;
    for (const std::vector<float>& key : keys) {
      double squares = 0;
      for (std::size_t i = 0; i < dim; ++i) squares += std::pow(key[i] - (least[i] + most[i]) / 2, 2);
      radius = std::max(radius, std::sqrt(squares));
    }
    best.push_back(-1e30);
    for (std::size_t q = 0; q < of.query.size(); q += dim) {
      double sum = 0, length = 0;
      for (std::size_t i = 0; i < dim; ++i) {
        const double x = of.query[q + i];
        sum += sphere ? x * (least[i] + most[i]) / 2 : std::max(x * least[i], x * most[i]);
        length += x * x;
      }
      best.back() = std::max(best.back(), sum + (sphere ? std::sqrt(length) * radius : 0));
    }
  }
  return best;
}

/// The mean over the group of each token's probability.
std::vector<double> mean_probabilities(const Sequence& sequence, const Traced& of, std::size_t dim) {
  std::vector<double> mean(static_cast<std::size_t>(sequence.length()), 0.0);
  for (std::size_t q = 0; q < of.query.size(); q += dim) {
    std::vector<double> weights;
    double sum = 0;
    for (std::int64_t at = 0; at < sequence.length(); ++at) {
      const std::vector<float> key = sequence.key(of.layer, of.head, at);
      double dot = 0;
      for (std::size_t i = 0; i < dim; ++i) dot += static_cast<double>(of.query[q + i]) * static_cast<double>(key[i]);
      weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(dim))));
      sum += weights.back();
    }
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += weights[i] / sum;
  }
  return mean;
}

/// What a trace says of a set is what the keys and queries of the device give, by plain loops.
TEST_F(Cuda, TracedSetsAreTheBestOfTheirKeys) {
  Engine gpu(on_gpu(reference::test_model("llama256")));
  const auto dim = static_cast<std::size_t>(gpu.shape().head_dim);
  const std::vector<Token> tokens = random_tokens(304, gpu.tokenizer().size());
  for (const Method& method :
       {Method{"quest", {}}, Method{"arkvale", {{"resident", "all"}, {"digest", "sphere"}}, 16}, Method{"tidal", {}}}) {
    SCOPED_TRACE(method.name);
    const std::string name = method.name;
    const bool pages = name != "tidal";
    const std::int64_t block = pages ? 16 : 1;
    Sequence sequence = gpu.open(plan_of(gpu, method, "64"));
    sequence.prefill(std::span(tokens).first(300));
    std::vector<Traced> traced;
    trace_sets(sequence, traced);
    for (std::size_t step = 300; step < tokens.size(); ++step) {
      traced.clear();
      sequence.decode(tokens[step], step % 2 == 0);
      ASSERT_FALSE(traced.empty());
      for (const Traced& of : traced) {
        const std::int64_t open = (sequence.length() - 1) / block;  // the current token's block is in every set
        std::vector<double> values = pages ? block_bounds(sequence, of, dim, open, block, name == "arkvale")
                                           : mean_probabilities(sequence, of, dim);
        values.resize(static_cast<std::size_t>(open));
        std::vector<char> taken(static_cast<std::size_t>(open) + 1, 0);
        for (const std::int32_t token : of.set) taken[static_cast<std::size_t>(token / block)] = 1;
        EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), 64 / block);
        EXPECT_EQ(taken.back(), 1);
        double worst = 1e30, left = -1e30;
        for (std::size_t i = 0; i < values.size(); ++i) {
          (taken[i] != 0 ? worst : left) = taken[i] != 0 ? std::min(worst, values[i]) : std::max(left, values[i]);
        }
        EXPECT_GT(worst, left - 1e-4 * std::abs(left)) << "layer " << of.layer << ", head " << of.head;
      }
    }
  }
}

/// The same of chunks: 16 tokens each, which leave a buffer of 48 from the prompt's end on. Some are of corrected keys.
TEST_F(Cuda, TracedChunksAreTheBestOfTheirKeys) {
  constexpr std::int64_t kChunk = 16, kPrompt = 20 * kChunk, kBudget = 96, kSink = 16;
  Engine gpu(on_gpu(reference::test_model("llama256")));
  const auto dim = static_cast<std::size_t>(gpu.shape().head_dim);
  const std::vector<Token> tokens = random_tokens(kPrompt + 90, gpu.tokenizer().size());
  Sequence sequence = gpu.open(make(gpu, "lychee-cluster", budget("96", {{"score", "minmax"}, {"chunks", "fixed"}})));
  sequence.prefill(std::span(tokens).first(kPrompt));
  std::vector<Traced> traced;
  trace_sets(sequence, traced);
  std::int64_t covered = kPrompt;
  for (std::size_t step = kPrompt; step < tokens.size(); ++step) {
    SCOPED_TRACE(step);
    traced.clear();
    sequence.decode(tokens[step]);
    const std::int64_t length = sequence.length();
    if (length - covered >= kBudget / 2) covered += kChunk;
    ASSERT_FALSE(traced.empty());
    for (const Traced& of : traced) {
      const std::set<std::int32_t> set(of.set.begin(), of.set.end());
      const std::int64_t room = (kBudget - kSink - (length - covered)) / kChunk;
      EXPECT_EQ(std::ssize(set), kSink + room * kChunk + length - covered);
      for (std::int64_t at = covered; at < length; ++at) EXPECT_TRUE(set.contains(static_cast<std::int32_t>(at)));
      const std::vector<double> values = block_bounds(sequence, of, dim, covered / kChunk, kChunk, false);
      std::int64_t taken = 0;
      double worst = 1e30, left = -1e30;
      for (std::int64_t chunk = kSink / kChunk; chunk < covered / kChunk; ++chunk) {
        const double value = values[static_cast<std::size_t>(chunk)];
        const bool in = set.contains(static_cast<std::int32_t>(chunk * kChunk));
        taken += in ? 1 : 0;
        (in ? worst : left) = in ? std::min(worst, value) : std::max(left, value);
      }
      EXPECT_EQ(taken, room);
      EXPECT_GT(worst, left - 1e-4 * std::abs(left)) << "layer " << of.layer << ", head " << of.head;
    }
    if (step == kPrompt + 50) sequence.correct(150);
  }
}

/// The same of trained gates, by what their authors' formula gives.
TEST_F(Cuda, TracedBlocksAreThoseOfTheirGates) {
  for (const char* name : {"llama256", "qwen3"}) {
    for (const char* wanted : {"96", "tau=0.03"}) {
      SCOPED_TRACE(std::string(name) + ", " + wanted);
      Engine gpu(on_gpu(reference::test_model(name)));
      const bool by_tau = std::string_view(wanted) != "96";
      const std::vector<Token> tokens = random_tokens(330, gpu.tokenizer().size());
      Sequence sequence = gpu.open(plan_of(gpu, {"seer", {}, 16}, wanted));
      sequence.prefill(std::span(tokens).first(300));
      std::vector<Traced> traced;
      trace_sets(sequence, traced);
      for (std::size_t step = 300; step < tokens.size(); ++step) {
        traced.clear();
        sequence.decode(tokens[step]);
        ASSERT_FALSE(traced.empty());
        if (sequence.length() % 16 == 0) continue;  // the block that ends here counts from the next step on
        for (const Traced& of : traced) {
          methods::Rows queries, keys;
          const auto dim = static_cast<std::size_t>(gpu.shape().head_dim);
          for (std::size_t q = 0; q < of.query.size(); q += dim) {
            queries.emplace_back(of.query.begin() + static_cast<std::ptrdiff_t>(q),
                                 of.query.begin() + static_cast<std::ptrdiff_t>(q + dim));
          }
          for (std::int64_t at = 0; at < sequence.length(); ++at) {
            const std::vector<float> key = sequence.key(of.layer, of.head, at);
            keys.emplace_back(key.begin(), key.end());
          }
          const auto number = static_cast<std::size_t>(of.layer * gpu.shape().kv_heads + of.head);
          methods::Scores scores = methods::gate_scores(gates_for(gpu).heads.at(number), queries, keys);
          if (by_tau) scores = methods::softmax(scores);
          const auto open = static_cast<std::size_t>((sequence.length() - 1) / 16);
          std::vector<char> taken(open + 1, 0);
          for (const std::int32_t token : of.set) taken[static_cast<std::size_t>(token / 16)] = 1;
          EXPECT_EQ(taken.back(), 1);
          EXPECT_TRUE(by_tau || std::count(taken.begin(), taken.end(), 1) == 96 / 16);
          double worst = 1e30, left = -1e30;
          for (std::size_t i = 0; i < open; ++i) {
            (taken[i] != 0 ? worst : left) = taken[i] != 0 ? std::min(worst, scores[i]) : std::max(left, scores[i]);
          }
          EXPECT_GT(worst, left - 1e-3) << "layer " << of.layer << ", head " << of.head;
          EXPECT_TRUE(!by_tau || (worst > 0.03 - 1e-4 && left < 0.03 + 1e-4)) << worst << ", " << left;
        }
      }
    }
  }
}

/// An audit reads the keys that factors stand for too, and attention's output is that of the factors, whoever is
/// beside.
TEST_F(Cuda, AuditsBesideOtherMethodsChangeNothing) {
  const auto together = [](std::int64_t audit_every) {
    Engine gpu(on_gpu(reference::test_model("llama256")));
    Request factors = request_for(gpu, 400, "full", 9), scores = request_for(gpu, 300, "tidal", 3);
    factors.plan = plan_of(gpu, {"shadowkv", {{"resident", "all"}, {"outliers", "3"}}}, "48");
    factors.audit_every = audit_every;
    const RequestId a = gpu.submit(factors), b = gpu.submit(scores);
    run_all(gpu);
    EXPECT_EQ(gpu.result(a).stats.attention.audits > 0, audit_every > 0);
    return std::vector{gpu.result(a).tokens, gpu.result(b).tokens};
  };
  EXPECT_EQ(together(1), together(0));
}

TEST_F(Cuda, LosslessAndCorrectedRequestsEnd) {
  Engine gpu(on_gpu(reference::test_model("llama256")));
  const auto tokens_of = [&](const Method& method, bool lossless, int correct_every) {
    Request request = request_for(gpu, 400, "full", 9);
    request.plan = plan_of(gpu, method, "48");
    request.lossless = lossless;
    request.correct_every = correct_every;
    const RequestId id = gpu.submit(request);
    run_all(gpu);
    EXPECT_EQ(gpu.result(id).tokens.size(), 12U);
    return gpu.result(id).tokens;
  };
  const std::vector<Token> dense = tokens_of({"full", {}}, false, 0);
  for (const Method& method :
       {Method{"tidal", {}}, Method{"quest", {}}, Method{"evosparse", {}}, Method{"lychee_cluster", {}},
        Method{"lychee_cluster", {{"score", "minmax"}}}, Method{"clusterkv", {}, 0, 20}, Method{"seer", {}, 16},
        Method{"shadowkv", {{"resident", "all"}, {"outliers", "3"}}}}) {
    SCOPED_TRACE(method.name);
    EXPECT_EQ(tokens_of(method, true, 0), dense);  // but for near ties, of which there are none here
    if (method.name != std::string_view("evosparse")) tokens_of(method, false, 4);
  }
}

/// From 16,384 (row, token) pairs on the rows of a verification are a prompt's, which read the cache once. They say
/// what dense steps say, but where two logits are nearer than rounding.
TEST_F(Cuda, LongVerificationsSayWhatDenseStepsSay) {
  for (const auto& model : models()) {
    SCOPED_TRACE(model.string());
    Engine gpu(on_gpu(model));
    std::vector<Request> requests;
    std::vector<RequestId> ids;
    for (std::uint32_t seed = 1; seed <= 3; ++seed) {
      requests.push_back(request_for(gpu, 1200 + 400 * seed, "full", seed));
      requests.back().max_tokens = 40;
    }
    const auto answers = [&] {
      ids.clear();
      for (const Request& request : requests) ids.push_back(gpu.submit(request));
      run_all(gpu);
      std::vector<Result> results;
      for (const RequestId id : ids) results.push_back(gpu.result(id));
      for (const RequestId id : ids) gpu.release(id);
      return results;
    };
    for (Request& request : requests) request.logprobs = 2;
    const std::vector<Result> dense = answers();
    for (Request& request : requests) {
      request.plan = make(gpu, "kascade", budget("256"));
      request.lossless = true;
      request.draft_tokens = 11;
    }
    const std::vector<Result> all = answers();
    for (Request& request : requests) request.logprobs.reset();
    const std::vector<Result> largest = answers();
    const auto place_apart = [&](std::size_t i) {
      const auto apart = std::mismatch(all[i].tokens.begin(), all[i].tokens.end(), dense[i].tokens.begin()).first;
      return static_cast<std::size_t>(apart - all[i].tokens.begin());
    };
    double rounding = 0;  // the most that a token's logarithms differ where both went the same way
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (std::size_t at = 0; at < place_apart(i); ++at) {
        const double apart = all[i].logprobs[at].logprob - dense[i].logprobs[at].logprob;
        rounding = std::max(rounding, std::abs(apart));
      }
    }
    EXPECT_GT(rounding, 0);
    EXPECT_LT(rounding, 0.1);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_GT(all[i].stats.lossless.accepted, 0);
      EXPECT_EQ(largest[i].tokens, all[i].tokens) << "from the largest logits alone";
      const std::size_t apart = place_apart(i);
      EXPECT_GT(apart, 8U);
      if (apart == all[i].tokens.size()) continue;
      const auto& top = dense[i].logprobs[apart].top;
      EXPECT_LT(top[0].logprob - top[1].logprob, 2 * rounding) << "token " << apart;
    }
  }
}

}  // namespace
}  // namespace glimpse::engine
