// The forward pass against libllama's own, on the same tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/engine/support.h"
#include "tests/support/llama_reference.h"
#include "tests/support/places.h"

namespace glimpse::engine {
namespace {

using reference::LlamaReference;

struct Difference {
  double max_absolute = 0;
  double mean_kl = 0;  ///< of ours from the reference, nats
  int top_flips = 0;   ///< positions with another arg-max although the reference's gap is over `gap`
};

Difference compare(std::span<const float> ours, std::span<const float> theirs, std::size_t width, double gap) {
  Difference difference;
  const std::size_t rows = ours.size() / width;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto a = ours.subspan(row * width, width);
    const auto b = theirs.subspan(row * width, width);
    double sum_a = 0, sum_b = 0;
    const double max_a = *std::max_element(a.begin(), a.end());
    const double max_b = *std::max_element(b.begin(), b.end());
    for (std::size_t i = 0; i < width; ++i) {
      difference.max_absolute = std::max(difference.max_absolute, std::abs(static_cast<double>(a[i]) - b[i]));
      sum_a += std::exp(a[i] - max_a);
      sum_b += std::exp(b[i] - max_b);
    }
    for (std::size_t i = 0; i < width; ++i) {
      const double log_a = a[i] - max_a - std::log(sum_a);
      const double log_b = b[i] - max_b - std::log(sum_b);
      difference.mean_kl += std::exp(log_b) * (log_b - log_a) / static_cast<double>(rows);
    }
    const auto top = std::max_element(b.begin(), b.end()) - b.begin();
    float second = -INFINITY;
    for (std::size_t i = 0; i < width; ++i) {
      if (static_cast<std::ptrdiff_t>(i) != top) second = std::max(second, b[i]);
    }
    const auto mine = std::max_element(a.begin(), a.end()) - a.begin();
    if (mine != top && b[static_cast<std::size_t>(top)] - second > gap) ++difference.top_flips;
  }
  return difference;
}

/// Ours: `chunked` tokens as prefill, the rest one by one. All positions' logits.
std::vector<float> our_logits(Engine& engine, std::span<const Token> tokens, std::size_t chunked) {
  const auto width = static_cast<std::size_t>(engine.tokenizer().size());
  std::vector<float> logits(tokens.size() * width);
  Sequence sequence = engine.open(make(engine, "full"));
  const auto keep = [&](std::int64_t position, std::span<const float> row) {
    std::copy(row.begin(), row.end(), logits.begin() + position * static_cast<std::ptrdiff_t>(width));
  };
  sequence.prefill(tokens.first(chunked), keep);
  for (std::size_t i = chunked; i < tokens.size(); ++i) keep(static_cast<std::int64_t>(i), sequence.decode(tokens[i]));
  return logits;
}

std::vector<float> their_logits(const std::filesystem::path& model, std::span<const Token> tokens, bool exact = true,
                                int threads = reference::kTestThreads) {
  LlamaReference llama(model, {.context = static_cast<int>(tokens.size()) + 64, .threads = threads, .exact = exact});
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(llama.vocabulary()));
  llama.append(tokens, &logits);
  return logits;
}

/// How far two right answers may lie apart. ggml rounds activations to 8 bits before it multiplies them with quantised
/// weights, and that rounding turns differences of the last bit into ones of 1/254: libllama's own logits with and
/// without flash attention differ by a KL of 2e-3 to 1e-2 for the same file. 1e-3 where that noise is smaller; else
/// twice it, our cache being bf16 or, where that is faster, the products too.
double allowed_divergence(const std::filesystem::path& model, std::span<const Token> tokens,
                          std::span<const float> exact, std::size_t width, int threads = reference::kTestThreads) {
  const std::vector<float> flash = their_logits(model, tokens, false, threads);
  return std::max(1e-3, 2 * compare(flash, exact, width, 1.0).mean_kl);
}

class FloatModel : public testing::TestWithParam<std::string> {};

TEST_P(FloatModel, LogitsEqualLibllamas) {
  const auto path = reference::test_model(GetParam());
  Engine engine(options_for(path));
  const auto width = static_cast<std::size_t>(engine.tokenizer().size());
  const std::vector<Token> tokens = random_tokens(kSanitized ? 150 : 2000, engine.tokenizer().size());
  const Difference difference =
      compare(our_logits(engine, tokens, tokens.size() - 100), their_logits(path, tokens), width, 2e-2);
  EXPECT_LT(difference.max_absolute, 2e-2);
  EXPECT_EQ(difference.top_flips, 0);
  RecordProperty("max_absolute", std::to_string(difference.max_absolute));
}

INSTANTIATE_TEST_SUITE_P(Architectures, FloatModel,
                         testing::Values("llama", "llama2", "llama3", "llama-linear", "llama-yarn", "mistral", "qwen2",
                                         "qwen2-yarn", "qwen3", "llama256", "llama256-f16", "mqa32", "mqa200"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class QuantisedModel : public testing::TestWithParam<std::string> {};

TEST_P(QuantisedModel, DistributionsEqualLibllamas) {
  const auto path = reference::test_model("llama256-" + GetParam());
  Engine engine(options_for(path, kDefaultKvType));
  const auto width = static_cast<std::size_t>(engine.tokenizer().size());
  const std::vector<Token> tokens = random_tokens(kSanitized ? 60 : 400, engine.tokenizer().size());
  const std::vector<float> theirs = their_logits(path, tokens);
  const Difference difference = compare(our_logits(engine, tokens, tokens.size() - 20), theirs, width, 1.0);
  EXPECT_LT(difference.mean_kl, allowed_divergence(path, tokens, theirs, width));
  RecordProperty("mean_kl", std::to_string(difference.mean_kl));
}

INSTANTIATE_TEST_SUITE_P(Types, QuantisedModel,
                         testing::Values("bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q4_K", "q5_K",
                                         "q6_K", "iq4_nl", "iq4_xs", "iq3_s", "tq1_0", "tq2_0"),
                         [](const auto& row) { return row.param; });

TEST(SplitModel, LogitsEqualTheWhole) {
  std::filesystem::path first;
  for (const auto& entry : std::filesystem::directory_iterator(test::models_folder())) {
    if (entry.path().filename().string().starts_with("split-00001-of-")) first = entry.path();
  }
  ASSERT_FALSE(first.empty());
  Engine engine(options_for(first));
  const std::vector<Token> tokens = random_tokens(100, engine.tokenizer().size());
  const auto width = static_cast<std::size_t>(engine.tokenizer().size());
  const Difference difference = compare(our_logits(engine, tokens, 90), their_logits(first, tokens), width, 2e-2);
  EXPECT_LT(difference.max_absolute, 2e-2);
}

/// A real model on real text with the default cache: distributions and perplexity.
void real_model(const std::filesystem::path& path, const std::string& prose) {
  if (path.empty() || prose.empty()) GTEST_SKIP() << "the model or the text is not on this machine";
  if (kSanitized) GTEST_SKIP() << "too slow under sanitizers; the small models run there";
  constexpr int kThreads = 2;
  // What quantised activations change at single tokens is hundreds of times what perplexity may differ: it takes many.
  constexpr std::size_t kTokens = 2000;
  EngineOptions options = options_for(path, kDefaultKvType, kThreads);
  options.context = 2048;
  Engine engine(options);
  const auto width = static_cast<std::size_t>(engine.tokenizer().size());
  std::vector<Token> tokens = engine.tokenizer().encode(prose.substr(0, 24000), text::Special::as_text, false);
  ASSERT_GT(tokens.size(), kTokens);
  tokens.resize(kTokens);
  const std::vector<float> ours = our_logits(engine, tokens, tokens.size() - 64);
  const std::vector<float> theirs = their_logits(path, tokens, true, kThreads);
  const Difference difference = compare(ours, theirs, width, 2.0);
  EXPECT_LT(difference.mean_kl, allowed_divergence(path, tokens, theirs, width, kThreads));
  EXPECT_EQ(difference.top_flips, 0);
  double nll[2] = {0, 0};
  const std::vector<float>* both[2] = {&ours, &theirs};
  for (int side = 0; side < 2; ++side) {
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const float* row = both[side]->data() + i * width;
      const float top = *std::max_element(row, row + width);
      double sum = 0;
      for (std::size_t v = 0; v < width; ++v) sum += std::exp(static_cast<double>(row[v]) - top);
      nll[side] += std::log(sum) + top - row[tokens[i + 1]];
    }
  }
  const double count = static_cast<double>(tokens.size() - 1);
  const double ratio = std::exp((nll[0] - nll[1]) / count);
  EXPECT_NEAR(ratio, 1.0, 5e-3);
  testing::Test::RecordProperty("perplexity_ratio", std::to_string(ratio));
}

TEST(RealModel, EmbeddedModelAgreesWithLibllama) {
  std::string prose = reference::long_prose();
  if (prose.empty()) {
    std::ifstream file(test::models_folder() / "journal.txt");
    prose.assign(std::istreambuf_iterator<char>(file), {});
    ASSERT_FALSE(prose.empty()) << "the test make_test_models writes it";
  }
  real_model(reference::embedded_model(), prose);
}
TEST(RealModel, LongModelAgreesWithLibllama) {
  real_model(reference::long_model(), reference::long_prose());
}

}  // namespace
}  // namespace glimpse::engine
