// Sessions: what is loaded goes on as what was saved, bit for bit, for every policy; prompts that share a beginning
// answer as without a file; what is refused is named and left alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glimpse/base/error.h"
#include "tests/engine/gates.h"
#include "tests/engine/session_support.h"

namespace glimpse::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kChunk = 64;
constexpr std::size_t kPrompt = 400;

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const policies::Policy& policy : policies::registry()) {
    names.emplace_back(policy.name);
  }
  return names;
}

plan::Plan plan_of(const Engine& engine, const std::string& policy) {
  policies::PolicyOptions options = policy == "full" ? policies::PolicyOptions{} : budget("160");
  add_needed(policy, reference::test_model("llama"), options);
  return make(engine, policy, options);
}

EngineOptions small_options(const std::string& model = "llama", KvType type = KvType::bf16) {
  EngineOptions options = options_for(reference::test_model(model), type, 1);
  options.prefill_chunk = kChunk;
  return options;
}

/// `tokens` in whole chunks of the plan's prefill, whose tiles are not cut.
std::int64_t whole_chunks(const plan::Plan& plan, std::int64_t tokens) {
  std::int64_t chunk = kChunk;
  if (plan.prefill.sparse)
    chunk = kChunk / plan.prefill.tile_tokens(plan.shape.group()) * plan.prefill.tile_tokens(plan.shape.group());
  return tokens / chunk * chunk;
}

/// What a sequence holds that can be asked for.
void expect_same_state(const Sequence& a, const Sequence& b, const plan::ModelShape& shape) {
  EXPECT_TRUE(std::equal(a.tokens().begin(), a.tokens().end(), b.tokens().begin(), b.tokens().end()));
  for (int layer = 0; layer < shape.layers; ++layer) {
    EXPECT_EQ(a.heat(layer), b.heat(layer));
    for (int head = 0; head < shape.kv_heads; ++head) {
      EXPECT_EQ(a.statistic(layer, head), b.statistic(layer, head));
      ASSERT_EQ(a.live(layer, head), b.live(layer, head));
      for (const std::int32_t position : a.live(layer, head)) {
        ASSERT_EQ(a.key(layer, head, position), b.key(layer, head, position)) << layer << " " << head;
        ASSERT_EQ(a.value(layer, head, position), b.value(layer, head, position)) << layer << " " << head;
      }
    }
  }
}

class AnyPolicySession : public testing::TestWithParam<std::string> {};

// Saved twice: behind the prompt, and amid the answer, when heads have forgotten tokens and indices have grown.
TEST_P(AnyPolicySession, GoesOnBitForBit) {
  for (const KvType type : {KvType::bf16, KvType::q8_0}) {
    const auto prompt_file = session_path("prompt"), later_file = session_path("later");
    Engine engine(small_options("llama", type));
    const plan::Plan plan = plan_of(engine, GetParam());
    const std::vector<Token> tokens = random_tokens(kPrompt + 60, engine.tokenizer().size());
    const std::span<const Token> first = std::span(tokens).subspan(kPrompt, 44), rest = std::span(tokens).last(16);
    Sequence sequence = engine.open(plan);
    const auto logits = sequence.prefill(std::span(tokens).first(kPrompt));
    const std::vector<float> last(logits.begin(), logits.end());
    sequence.save(prompt_file, last);
    const auto expected_first = decoded(sequence, first);
    sequence.save(later_file);

    Engine other(small_options("llama", type));
    Sequence later = other.load(later_file, plan);
    ASSERT_EQ(later.length(), sequence.length());
    EXPECT_TRUE(later.logits().empty());
    expect_same_state(sequence, later, plan.shape);
    const auto expected_rest = decoded(sequence, rest);
    EXPECT_TRUE(same_bits(decoded(later, rest), expected_rest));
    expect_same_state(sequence, later, plan.shape);
    Sequence prompt = other.load(prompt_file, plan);
    EXPECT_TRUE(same_bits(prompt.logits(), last));
    EXPECT_TRUE(same_bits(decoded(prompt, first), expected_first));
    EXPECT_TRUE(prompt.logits().empty()) << "they were of another token";
    EXPECT_TRUE(same_bits(decoded(prompt, rest), expected_rest));
    if (GetParam() != "full" && GetParam() != "arkvale") continue;
    prompt.save(later_file);  // what was loaded can be saved, pages of a tier too
    Sequence again = other.load(later_file, plan);
    expect_same_state(again, prompt, plan.shape);
  }
}

TEST_P(AnyPolicySession, ARequestAnswersAsWithoutAFile) {
  const auto file = session_path("file");
  Engine engine(small_options());
  const plan::Plan plan = plan_of(engine, GetParam());
  std::vector<Token> prompt = random_tokens(kPrompt, engine.tokenizer().size());
  const Result plain = answer(engine, prompt, plan);
  const Result made = answer(engine, prompt, plan, file);
  EXPECT_EQ(made.tokens, plain.tokens);
  EXPECT_EQ(made.stats.session->file_tokens, 0);
  EXPECT_EQ(made.stats.session->saved_tokens, 400);
  const auto bytes = read_bytes(file);
  EXPECT_EQ(static_cast<std::int64_t>(bytes.size()), made.stats.session->saved_bytes);

  Engine other(small_options());
  const Result loaded = answer(other, prompt, plan, file);
  EXPECT_EQ(loaded.tokens, plain.tokens);
  EXPECT_EQ(loaded.stats.session->loaded_tokens, 400);
  EXPECT_EQ(loaded.stats.prefill_s, 0) << "no pass at all";
  EXPECT_EQ(loaded.stats.session->saved_tokens, 0);
  EXPECT_EQ(read_bytes(file), bytes);
  EXPECT_EQ(loaded.stats.attention.k_rows, plain.stats.attention.k_rows);
  EXPECT_EQ(loaded.stats.attention.index_bytes, plain.stats.attention.index_bytes);

  // Longer by some chunks.
  const std::vector<Token> more = random_tokens(170, engine.tokenizer().size(), 11);
  std::vector<Token> longer = prompt;
  longer.insert(longer.end(), more.begin(), more.end());
  const Result expected = answer(engine, longer, plan);
  const Result grown = answer(other, longer, plan, file);
  const bool all = plan.prefill.observe == plan::Observe::all;
  EXPECT_EQ(grown.stats.session->loaded_tokens, all ? 400 : whole_chunks(plan, 400))
      << "whole chunks, but what cannot be cut";
  EXPECT_EQ(grown.stats.session->saved_tokens, 570);
  EXPECT_EQ(grown.stats.attention.k_rows, expected.stats.attention.k_rows);
  if (!all) {
    EXPECT_EQ(grown.tokens, expected.tokens);
  }
  const Result again = answer(other, longer, plan, file);
  EXPECT_EQ(again.tokens, grown.tokens);
  EXPECT_EQ(again.stats.session->loaded_tokens, 570);

  // Another end, and shorter: the file stays.
  std::vector<Token> shorter(longer.begin(), longer.begin() + 300);
  for (Token& token : std::span(shorter).last(30)) token = 5;
  const Result cut = answer(other, shorter, plan, file);
  EXPECT_EQ(cut.tokens, answer(engine, shorter, plan).tokens);
  EXPECT_GE(cut.stats.session->common_tokens, 270);
  EXPECT_EQ(cut.stats.session->loaded_tokens, all ? 0 : whole_chunks(plan, 270));
  EXPECT_EQ(cut.stats.session->why_less.empty(), false);
  EXPECT_EQ(cut.stats.session->saved_tokens, 0);
}

// Rows are the same whoever selects from them; indices, heat and low-rank keys are made from them.
TEST_P(AnyPolicySession, ServesOtherMethods) {
  const auto file = session_path("file");
  Engine engine(small_options());
  const std::vector<Token> prompt = random_tokens(kPrompt, engine.tokenizer().size());
  answer(engine, prompt, plan_of(engine, GetParam()), file);
  const auto bytes = read_bytes(file);
  const bool sparse = plan_of(engine, GetParam()).prefill.sparse;
  for (const char* policy : {"full", "quest", "evosparse", "lychee-cluster", "h2o", "kascade", "tova"}) {
    if (policy == GetParam()) continue;
    const plan::Plan plan = plan_of(engine, policy);
    const Result result = answer(engine, prompt, plan, file);
    const bool all = plan.prefill.observe == plan::Observe::all;
    const std::int64_t most = whole_chunks(plan, 400 - std::max(1, plan.prefill.observe_rows));
    EXPECT_EQ(result.stats.session->loaded_tokens, sparse || all || plan.prefill.sparse ? 0 : most) << policy;
    EXPECT_EQ(result.stats.session->common_tokens, 400);
    EXPECT_EQ(result.tokens, answer(engine, prompt, plan).tokens) << policy;
  }
  EXPECT_EQ(read_bytes(file), bytes);
}

INSTANTIATE_TEST_SUITE_P(Registry, AnyPolicySession, testing::ValuesIn(policy_names()), [](const auto& row) {
  std::string name = row.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Session, UnderAnotherPlanALoadIsAFork) {
  const auto file = session_path("file");
  Engine engine(small_options());
  const std::vector<Token> tokens = random_tokens(kPrompt + 40, engine.tokenizer().size());
  const std::span<const Token> rest = std::span(tokens).last(20);
  Sequence sequence = engine.open(plan_of(engine, "quest"));
  sequence.prefill(std::span(tokens).first(kPrompt));
  decoded(sequence, std::span(tokens).subspan(kPrompt, 20));
  sequence.save(file);
  for (const char* policy : {"full", "lychee-cluster", "clusterkv", "tidal"}) {
    Sequence fork = sequence.fork(plan_of(engine, policy));
    const auto expected = decoded(fork, rest);
    Sequence loaded = engine.load(file, plan_of(engine, policy));
    EXPECT_TRUE(same_bits(decoded(loaded, rest), expected)) << policy;
  }
}

// A sparse prefill leaves other keys and values than a dense one, so its sets are not those of dense rows.
TEST(Session, ASparsePrefillTakesNoRowsOfADenseOne) {
  using Read = std::tuple<std::int64_t, int, int, std::vector<std::int32_t>>;
  const auto sets_of = [](Engine& engine, const std::vector<Token>& prompt, const std::filesystem::path& file) {
    std::vector<Read> read;
    Request request;
    request.prompt = prompt;
    request.plan = make(engine, "kascade", budget("32"));
    request.max_tokens = 12;
    request.ignore_end = true;
    if (!file.empty()) request.session = file;
    request.on_sets = [&](const SetTrace& trace) {
      read.emplace_back(trace.step, trace.layer, trace.kv_head,
                        std::vector<std::int32_t>(trace.tokens.begin(), trace.tokens.end()));
    };
    const RequestId id = engine.submit(request);
    while (engine.step()) {
    }
    engine.release(id);
    return read;
  };
  const auto file = session_path("file");
  Engine engine(small_options());
  const std::vector<Token> prompt = random_tokens(kPrompt, engine.tokenizer().size());
  answer(engine, prompt, plan_of(engine, "full"), file);
  const auto fresh = sets_of(engine, prompt, {});
  EXPECT_EQ(sets_of(engine, prompt, file), fresh);

  // What the plan's own prefill saved still serves it.
  const plan::Plan own = make(engine, "kascade", budget("32"));
  std::filesystem::remove(file);
  answer(engine, prompt, own, file);
  EXPECT_EQ(sets_of(engine, prompt, file), fresh);
  EXPECT_EQ(answer(engine, prompt, own, file).stats.session->loaded_tokens, static_cast<std::int64_t>(kPrompt));
}

TEST(Session, DecodedRowsServeTheirOwnPlanAlone) {
  const auto file = session_path("file");
  Engine engine(small_options());
  std::vector<Token> prompt = random_tokens(kPrompt, engine.tokenizer().size());
  for (const char* policy : {"tidal", "tova"}) {
    const plan::Plan plan = plan_of(engine, policy);
    Sequence sequence = engine.open(plan);
    sequence.prefill(std::span(prompt).first(300));
    decoded(sequence, std::span(prompt).subspan(300, 60));
    sequence.save(file);
    const Result own = answer(engine, prompt, plan, file);
    EXPECT_EQ(own.stats.session->loaded_tokens, 360) << policy;
    const Result other = answer(engine, prompt, plan_of(engine, "full"), file);
    EXPECT_EQ(other.stats.session->loaded_tokens, policy == std::string("tidal") ? 256 : 0);
    EXPECT_EQ(other.tokens, answer(engine, prompt, plan_of(engine, "full")).tokens);
    std::filesystem::remove(file);
  }
}

TEST(Session, AnotherPromptIsNotWrittenOverIt) {
  const auto file = session_path("file");
  Engine engine(small_options());
  const plan::Plan plan = plan_of(engine, "full");
  answer(engine, random_tokens(200, engine.tokenizer().size(), 1), plan, file);
  const auto bytes = read_bytes(file);
  const Result result = answer(engine, random_tokens(300, engine.tokenizer().size(), 2), plan, file);
  EXPECT_EQ(result.stats.session->loaded_tokens, 0);
  EXPECT_EQ(result.stats.session->saved_tokens, 0);
  EXPECT_EQ(read_bytes(file), bytes);
}

TEST(Session, AShortFileIsUsedAsItIs) {
  const auto file = session_path("file");
  Engine engine(small_options());
  const plan::Plan plan = plan_of(engine, "full");
  const std::vector<Token> prompt = random_tokens(90, engine.tokenizer().size(), 1);
  answer(engine, {prompt.begin(), prompt.begin() + 50}, plan, file);
  EXPECT_EQ(answer(engine, prompt, plan, file).stats.session->loaded_tokens, 50);
}

TEST(Session, WhoseItIsNotIsRefusedByName) {
  const auto file = session_path("file");
  Engine engine(small_options());
  const plan::Plan plan = plan_of(engine, "full");
  const std::vector<Token> prompt = random_tokens(100, engine.tokenizer().size());
  answer(engine, prompt, plan, file);
  const auto bytes = read_bytes(file);
  const auto expect_refused = [&](Engine& by, const std::string& why) {
    EXPECT_THAT([&] { by.load(file, plan_of(by, "full")); },
                ThrowsMessage<UserError>(AllOf(HasSubstr(file.string()), HasSubstr(why), HasSubstr("left as it is"))));
    EXPECT_THAT([&] { answer(by, prompt, plan_of(by, "full"), file); }, ThrowsMessage<UserError>(HasSubstr(why)));
    EXPECT_FALSE(by.step()) << "no request is left behind";
  };
  Engine qwen(small_options("qwen2"));
  expect_refused(qwen, "qwen2");
  Engine f16(small_options("llama", KvType::f16));
  expect_refused(f16, "--kv-type bf16");
  EXPECT_EQ(read_bytes(file), bytes);

  std::vector<std::byte> other = bytes;
  other[8] = std::byte{7};
  write_bytes(file, other);
  expect_refused(engine, "version 7");
  EXPECT_EQ(read_bytes(file), other);

  Sequence tova = engine.open(plan_of(engine, "tova"));
  tova.prefill(random_tokens(300, engine.tokenizer().size()));
  decoded(tova, prompt);
  tova.save(file);
  expect_refused(qwen, "qwen2");
  EXPECT_THAT([&] { engine.load(file, plan); }, ThrowsMessage<UserError>(HasSubstr("tova")));
}

// The same shape and name with other weights: the fixture's models of one architecture differ in training only here.
TEST(Session, OtherWeightsAreAnotherModel) {
  const auto file = session_path("file"), model = session_path("model.gguf");
  Engine engine(small_options());
  const std::vector<Token> prompt = random_tokens(100, engine.tokenizer().size());
  answer(engine, prompt, plan_of(engine, "full"), file);
  std::vector<std::byte> weights = read_bytes(reference::test_model("llama"));
  weights[weights.size() - 8] ^= std::byte{1};  // of the last tensor
  write_bytes(model, weights);
  EngineOptions options = small_options();
  options.model = model;
  Engine other(options);
  EXPECT_THAT([&] { other.load(file, plan_of(other, "full")); }, ThrowsMessage<UserError>(HasSubstr("other weights")));
}

TEST(Session, PlacesThatCannotHoldOneAreRefusedBeforeThePrefill) {
  Engine engine(small_options());
  const std::vector<Token> prompt = random_tokens(100, engine.tokenizer().size());
  const plan::Plan plan = plan_of(engine, "full");
  for (const auto& [place, why] : {std::pair{"/no-such-folder/file", "folder does not exist"},
                                   {"/tmp", "not a regular file"},
                                   {"/dev/null", "not a regular file"},
                                   {"", "name of a file"}}) {
    Request request;
    request.prompt = prompt;
    request.plan = plan;
    request.session = place;
    EXPECT_THAT([&] { engine.submit(request); }, ThrowsMessage<UserError>(HasSubstr(why))) << place;
    EXPECT_FALSE(engine.step());
  }
}

}  // namespace
}  // namespace glimpse::engine
