// LibTorch's student against the executor, which decodes the same tokens by the same roles, and its gradients against
// differences.
#include "glimpse/train/torch/student.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "glimpse/evaluate/logit_statistics.h"
#include "glimpse/evaluate/tasks/prose.h"
#include "glimpse/train/choices.h"
#include "tests/engine/support.h"
#include "tests/support/refusal.h"
#include "tests/support/test_names.h"

namespace glimpse::train {
namespace {

constexpr int kThreads = 2;
constexpr std::size_t kPrompt = 180, kTarget = 12;

/// Tokens, roles of zeros and ones, and a budget of 30 %.
GradientRequest request_for(const plan::ModelShape& shape, int vocabulary, std::uint32_t seed) {
  GradientRequest request;
  request.tokens = engine::random_tokens(kPrompt + kTarget, vocabulary, seed);
  request.first = kPrompt;
  request.budget = {plan::BudgetRule::ratio, 0.3};
  request.handing = Handing::role;
  std::mt19937 random(seed);
  for (int i = 0; i < (shape.layers - 1) * shape.kv_heads; ++i) request.gates.push_back(random() % 3 == 0 ? 1 : 0);
  return request;
}

/// Logits behind each target token, decoded by lychee-decode with these roles.
std::vector<std::vector<float>> decoded(engine::Engine& engine, const GradientRequest& request) {
  plan::Profile profile = plan::empty_profile(engine.shape());
  profile.roles = roles_of(engine.shape(), request.gates);
  policies::PolicyOptions options = engine::budget("30%");
  options.profile = &profile;
  engine::Sequence sequence = engine.open(policies::make_plan("lychee-decode", engine.shape(), options));
  const auto tokens = std::span<const engine::Token>(request.tokens);
  sequence.prefill(tokens.first(kPrompt));
  std::vector<std::vector<float>> rows;
  for (const engine::Token token : tokens.subspan(kPrompt)) {
    const auto row = sequence.decode(token);
    rows.emplace_back(row.begin(), row.end());
  }
  return rows;
}

struct Difference {
  double most = 0;        ///< of a logit
  double spread = 0;      ///< the logits' standard deviation
  double divergence = 0;  ///< KL(executor || student), nats, the largest of a row
};

Difference difference_of(engine::Engine& engine, const std::filesystem::path& path, const GradientRequest& request) {
  Student student(model::Model(path), kThreads);
  const std::vector<float> got = student.logits(request);
  const auto width = static_cast<std::size_t>(student.vocabulary());
  Difference difference;
  double sum = 0, square = 0;
  const auto want = decoded(engine, request);
  EXPECT_EQ(got.size(), want.size() * width);
  for (std::size_t row = 0; row < want.size(); ++row) {
    for (std::size_t i = 0; i < width; ++i) {
      const double value = want[row][i];
      difference.most = std::max(difference.most, std::abs(value - got[row * width + i]));
      sum += value;
      square += value * value;
    }
    const auto row_got = std::span<const float>(got).subspan(row * width, width);
    difference.divergence = std::max(difference.divergence, evaluate::divergence(want[row], row_got));
  }
  const auto count = static_cast<double>(want.size() * width);
  difference.spread = std::sqrt(square / count - (sum / count) * (sum / count));
  return difference;
}

class Architectures : public testing::TestWithParam<const char*> {};

TEST_P(Architectures, LogitsAreTheExecutors) {
  const auto path = reference::test_model(GetParam());
  engine::Engine engine(engine::options_for(path));
  for (const std::uint32_t seed : {1U, 2U}) {
    const Difference difference =
        difference_of(engine, path, request_for(engine.shape(), engine.tokenizer().size(), seed));
    EXPECT_LT(difference.most, 1e-2) << "of logits that spread " << difference.spread;
  }
}

INSTANTIATE_TEST_SUITE_P(Student, Architectures, testing::Values("llama", "qwen2", "qwen3", "mistral"), PrintedName{});

/// The executor rounds activations to 8 bits for weights of 4: logits differ by that, and what they say hardly does.
TEST(Student, LogitsOfTheEmbeddedModel) {
  if (reference::embedded_model().empty()) GTEST_SKIP() << "no model; run scripts/fetch-model";
  const auto path = reference::embedded_model();
  engine::Engine engine(engine::options_for(path));
  GradientRequest request = request_for(engine.shape(), engine.tokenizer().size(), 1);
  request.tokens = engine.tokenizer().encode(evaluate::generated_prose(60, 3), text::Special::as_text, true);
  request.tokens.resize(kPrompt + kTarget);
  for (const bool dense : {true, false}) {
    if (dense) std::fill(request.gates.begin(), request.gates.end(), 1.0);
    const Difference difference = difference_of(engine, path, request);
    RecordProperty(dense ? "dense" : "sparse", std::to_string(difference.most));
    EXPECT_LT(difference.divergence, 5e-2);
    EXPECT_LT(difference.most, 0.3 * difference.spread) << "of logits that spread " << difference.spread;
    request.gates = request_for(engine.shape(), engine.tokenizer().size(), 1).gates;
  }
}

TEST(Student, OpenGatesAreTheTeacher) {
  const auto path = reference::test_model("llama");
  const model::Model model(path);
  Student student(model, kThreads);
  const plan::ModelShape shape = engine::Engine(engine::options_for(path)).shape();
  GradientRequest request = request_for(shape, model.config().vocabulary, 3);
  EXPECT_GT(student.distilled(request).value, 1e-6);
  std::fill(request.gates.begin(), request.gates.end(), 1.0);
  EXPECT_LT(student.distilled(request).value, 1e-9);
}

TEST(Student, GradientsAreDifferences) {
  const auto path = reference::test_model("llama");
  const model::Model model(path);
  Student student(model, kThreads);
  const plan::ModelShape shape = engine::Engine(engine::options_for(path)).shape();
  GradientRequest request = request_for(shape, model.config().vocabulary, 4);
  request.handing = Handing::layer;
  request.budget = {plan::BudgetRule::tokens, 1};  // a row's own token: no set changes with the gates
  std::mt19937 random(9);
  for (double& gate : request.gates) gate = 0.2 + 0.6 * static_cast<double>(random() % 1000) / 1000;
  const Loss loss = student.distilled(request);
  double largest = 0;
  for (const double slope : loss.by_gate) largest = std::max(largest, std::abs(slope));
  ASSERT_GT(largest, 0);
  constexpr double kStep = 5e-3;
  for (std::size_t i = 0; i < request.gates.size(); ++i) {
    GradientRequest more = request, less = request;
    more.gates[i] += kStep;
    less.gates[i] -= kStep;
    const double slope = (student.distilled(more).value - student.distilled(less).value) / (2 * kStep);
    EXPECT_NEAR(loss.by_gate[i], slope, 0.02 * largest) << i;
  }
}

TEST(Student, APromptThatIsSharedGivesTheSameLoss) {
  const auto path = reference::test_model("qwen3");
  const model::Model model(path);
  const plan::ModelShape shape = engine::Engine(engine::options_for(path)).shape();
  const GradientRequest request = request_for(shape, model.config().vocabulary, 5);
  GradientRequest other = request;
  for (std::size_t i = 100; i < other.tokens.size(); ++i) other.tokens[i] = other.tokens[i] % 17 + 20;
  Student one(model, kThreads), two(model, kThreads);
  const Loss alone = two.distilled(request);
  one.distilled(other);
  const Loss behind = one.distilled(request);
  EXPECT_NEAR(behind.value, alone.value, 1e-5 * alone.value);
}

TEST(Student, TheProgramAnswersLikeTheStudent) {
  const auto path = reference::test_model("llama");
  const model::Model model(path);
  const plan::ModelShape shape = engine::Engine(engine::options_for(path)).shape();
  GradientRequest request = request_for(shape, model.config().vocabulary, 6);
  GradientProgram program(GLIMPSE_GRADIENTS, path, 1);
  const Loss answer = program.ask(request), own = Student(model, 1).distilled(request);
  EXPECT_NEAR(answer.value, own.value, 1e-6 * own.value);
  EXPECT_EQ(answer.by_gate.size(), own.by_gate.size());
  request.gates.pop_back();
  EXPECT_NE(refusal([&] { program.ask(request); }).find("KV heads behind layer 0"), std::string::npos);
  request.gates.push_back(1);
  request.tokens.back() = model.config().vocabulary;
  EXPECT_NE(refusal([&] { program.ask(request); }).find("token "), std::string::npos);
  GradientProgram none(GLIMPSE_GRADIENTS, "/nowhere.gguf", 1);
  EXPECT_NE(refusal([&] { none.ask(request); }).find("/nowhere.gguf"), std::string::npos);
}

}  // namespace
}  // namespace glimpse::train
