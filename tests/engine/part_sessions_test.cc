// Sessions of a part of a prompt, which a cancelled prefill leaves, and sessions in folders that are read only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "glimpse/base/error.h"
#include "tests/engine/gates.h"
#include "tests/engine/session_support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::size_t kPrompt = 400;

EngineOptions small_options() {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16, 1);
  options.prefill_chunk = 64;
  return options;
}

plan::Plan plan_of(const Engine& engine, const std::string& policy) {
  policies::PolicyOptions options = policy == "full" ? policies::PolicyOptions{} : budget("160");
  add_needed(policy, reference::test_model("llama"), options);
  return make(engine, policy, options);
}

/// A request that is cancelled when so many chunks of its prompt are done.
Result cancelled_after(int chunks, Engine& engine, const std::vector<Token>& prompt, const plan::Plan& plan,
                       const std::filesystem::path& file) {
  Request request;
  request.prompt = prompt;
  request.plan = plan;
  request.session = file;
  RequestId id = 0;
  int calls = 0;
  request.on_prefill = [&](std::int64_t, std::int64_t) {
    if (++calls == chunks) engine.cancel(id);
  };
  id = engine.submit(request);
  while (engine.step()) {
  }
  Result result = engine.result(id);
  engine.release(id);
  return result;
}

class AnyPolicyPart : public testing::TestWithParam<std::string> {};

TEST_P(AnyPolicyPart, IsKeptAndGoneOnFromBitForBit) {
  const auto file = session_path("file");
  Engine engine(small_options()), other(small_options());
  const plan::Plan plan = plan_of(engine, GetParam());
  const std::vector<Token> prompt = random_tokens(kPrompt, engine.tokenizer().size());
  const Result plain = answer(engine, prompt, plan);
  EXPECT_EQ(plain.stats.prefilled_tokens, static_cast<std::int64_t>(kPrompt));
  EXPECT_EQ(plain.stats.reused_tokens, 0);

  const Result stopped = cancelled_after(2, engine, prompt, plan, file);
  EXPECT_EQ(stopped.reason, FinishReason::cancelled);
  const std::int64_t done = stopped.stats.prefilled_tokens;
  EXPECT_GT(done, 0);
  EXPECT_LE(done, 128);
  EXPECT_EQ(stopped.stats.session->saved_tokens, done);
  EXPECT_EQ(stopped.stats.session->saved_bytes, static_cast<std::int64_t>(std::filesystem::file_size(file)));

  const Result further = cancelled_after(1, other, prompt, plan, file);
  EXPECT_EQ(further.stats.reused_tokens, done);
  EXPECT_EQ(further.stats.session->loaded_tokens, done);
  EXPECT_EQ(further.stats.session->saved_tokens, done + further.stats.prefilled_tokens);

  const Result resumed = answer(other, prompt, plan, file);
  EXPECT_EQ(resumed.stats.reused_tokens, done + further.stats.prefilled_tokens);
  EXPECT_EQ(resumed.stats.reused_tokens + resumed.stats.prefilled_tokens, static_cast<std::int64_t>(kPrompt));
  EXPECT_EQ(resumed.tokens, plain.tokens);
  EXPECT_EQ(resumed.stats.attention.k_rows, plain.stats.attention.k_rows);
  EXPECT_EQ(resumed.stats.attention.index_bytes, plain.stats.attention.index_bytes);
  EXPECT_EQ(resumed.stats.session->saved_tokens, static_cast<std::int64_t>(kPrompt));
  const Result again = answer(engine, prompt, plan, file);
  EXPECT_EQ(again.tokens, plain.tokens);
  EXPECT_EQ(again.stats.reused_tokens, static_cast<std::int64_t>(kPrompt));
  EXPECT_EQ(again.stats.prefilled_tokens, 0);
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const policies::Policy& policy : policies::registry()) names.emplace_back(policy.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Registry, AnyPolicyPart, testing::ValuesIn(policy_names()), [](const auto& row) {
  std::string name = row.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(PartSession, IsDecodedFromAsAPromptOfItsLength) {
  const auto file = session_path("file");
  Engine engine(small_options());
  const std::vector<Token> prompt = random_tokens(kPrompt, engine.tokenizer().size());
  const std::vector<Token> after = random_tokens(16, engine.tokenizer().size(), 3);
  for (const char* policy : {"raas", "clusterkv"}) {
    const plan::Plan plan = plan_of(engine, policy);
    std::filesystem::remove(file);
    EXPECT_EQ(cancelled_after(5, engine, prompt, plan, file).stats.session->saved_tokens, 320);
    Sequence loaded = engine.load(file, plan);
    Sequence expected = engine.open(plan);
    expected.prefill(std::span(prompt).first(320));
    EXPECT_TRUE(same_bits(decoded(loaded, after), decoded(expected, after))) << policy;
  }
}

TEST(PartSession, IsTheWholeWhereTheRequestIsCancelledOnItsLastChunk) {
  const auto file = session_path("file");
  Engine engine(small_options());
  const std::vector<Token> prompt = random_tokens(kPrompt, engine.tokenizer().size());
  for (const char* policy : {"full", "h2o"}) {
    SCOPED_TRACE(policy);
    std::filesystem::remove(file);
    const plan::Plan plan = plan_of(engine, policy);
    const Result plain = answer(engine, prompt, plan);
    const Result stopped = cancelled_after((kPrompt + 63) / 64, engine, prompt, plan, file);
    EXPECT_EQ(stopped.reason, FinishReason::cancelled);
    EXPECT_EQ(stopped.stats.session->saved_tokens, static_cast<std::int64_t>(kPrompt));
    const Result again = answer(engine, prompt, plan, file);
    EXPECT_EQ(again.stats.prefilled_tokens, 0);
    EXPECT_EQ(again.tokens, plain.tokens);
  }
}

TEST(PartSession, ReplacesNothingThatHoldsMore) {
  const auto file = session_path("file");
  Engine engine(small_options());
  const plan::Plan plan = plan_of(engine, "full");
  answer(engine, random_tokens(kPrompt, engine.tokenizer().size()), plan, file);
  const auto bytes = read_bytes(file);
  const Result stopped = cancelled_after(2, engine, random_tokens(kPrompt, engine.tokenizer().size(), 8), plan, file);
  EXPECT_EQ(stopped.stats.session->saved_tokens, 0);
  EXPECT_EQ(read_bytes(file), bytes);
}

/// The calling thread, root's too, keeps to the permissions of files from here on.
void obey_permissions() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  ASSERT_EQ(::syscall(SYS_capset, &header, none), 0);
}

TEST(ReadOnlyFolder, ItsSessionIsReadAndStaysAsItIs) {
  const auto folder = session_path("file").replace_extension("folder");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const auto file = folder / "file";
  Engine engine(small_options());
  const plan::Plan plan = plan_of(engine, "full");
  const std::vector<Token> prompt = random_tokens(kPrompt, engine.tokenizer().size());
  const Result plain = answer(engine, prompt, plan, file);
  const auto bytes = read_bytes(file);
  std::vector<Token> longer = prompt;
  longer.insert(longer.end(), 70, 9);
  const Result expected = answer(engine, longer, plan);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  std::thread([&] {
    obey_permissions();
    ASSERT_NE(::access(folder.c_str(), W_OK), 0);
    const Result read = answer(engine, prompt, plan, file);
    EXPECT_EQ(read.tokens, plain.tokens);
    EXPECT_EQ(read.stats.reused_tokens, static_cast<std::int64_t>(kPrompt));
    EXPECT_EQ(read.stats.session->read_only, "") << "there was nothing to write";
    const Result grown = answer(engine, longer, plan, file);
    EXPECT_EQ(grown.tokens, expected.tokens);
    EXPECT_EQ(grown.stats.reused_tokens, 384);
    EXPECT_EQ(grown.stats.session->saved_tokens, 0);
    EXPECT_EQ(grown.stats.session->save_error, "");
    EXPECT_THAT(grown.stats.session->read_only, HasSubstr("its folder cannot be written to: Permission denied"));
    Request request;
    request.prompt = prompt;
    request.plan = plan;
    request.session = folder / "another";
    EXPECT_THAT([&] { engine.submit(request); },
                ThrowsMessage<UserError>(HasSubstr("its folder cannot be written to")));
  }).join();
  EXPECT_EQ(read_bytes(file), bytes);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace glimpse::engine
