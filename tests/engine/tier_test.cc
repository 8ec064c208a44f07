// The host tier of ArkVale and ShadowKV in a whole model: what it reports, what it leaves alone, and folders that
// cannot hold it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "glimpse/base/disk_folder.h"
#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::size_t kPrompt = 500, kAll = 564;

TEST(HostTier, LogitsAreThoseOfThePlanWithoutIt) {
  for (const int threads : {1, 2}) {
    Engine engine(options_for(reference::test_model("llama"), KvType::bf16, threads));
    const std::vector<Token> tokens = random_tokens(kAll, engine.tokenizer().size());
    const plan::Plan plan = make(engine, "arkvale", budget("128", {{"resident", "128"}}));
    Sequence plain = engine.open(without_tier(plan));
    plain.prefill(std::span(tokens).first(kPrompt));
    const auto expected = decoded(plain, std::span(tokens).subspan(kPrompt));
    Sequence sequence = engine.open(plan);
    sequence.prefill(std::span(tokens).first(kPrompt));
    EXPECT_FALSE(sequence.stats().resident_tokens.has_value());
    EXPECT_TRUE(same_bits(decoded(sequence, std::span(tokens).subspan(kPrompt)), expected));
    const AttentionStats& stats = sequence.stats();
    EXPECT_EQ(stats.resident_tokens.value_or(0), 128);
    EXPECT_GT(stats.recalled_pages, 0);
    EXPECT_EQ(stats.recalled_bytes, stats.recalled_pages * 16 * static_cast<std::int64_t>(engine.row_pair_bytes()));
    std::int64_t needed = 0;  // three whole blocks of 32 and the pages of the last one
    for (std::size_t length = kPrompt + 1; length <= kAll; ++length)
      needed += 3 * 2 + ((length - 1) % 32 >= 16 ? 2 : 1);
    EXPECT_EQ(stats.recalled_pages + stats.resident_hits, needed * 2 * 2) << "layers 2 and 3, two KV heads";
    EXPECT_EQ(stats.bytes_read, plain.stats().bytes_read);
    EXPECT_EQ(plain.stats().recalled_pages, 0);
  }
}

/// Methods whose pages wait, so few resident that every step sends some away.
std::vector<std::pair<std::string, policies::PolicyOptions>> waiting_methods() {
  return {{"arkvale", budget("128", {{"resident", "128"}})},
          {"shadowkv", budget("64", {{"resident", "64"}, {"outliers", "2"}, {"rank", "0"}})},
          {"shadowkv", budget("64", {{"resident", "64"}, {"outliers", "2"}, {"rank", "12"}})}};
}

/// Logits, every fourth step audited.
std::vector<float> audited(Sequence& sequence, std::span<const Token> tokens) {
  std::vector<float> all;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto logits = sequence.decode(tokens[i], i % 4 == 3);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

TEST(HostTier, AuditsCorrectionsAndForksReadWhatWaits) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(kAll, engine.tokenizer().size());
  const std::span<const Token> middle = std::span(tokens).subspan(kPrompt, 32), rest = std::span(tokens).last(32);
  for (const auto& [policy, options] : waiting_methods()) {
    SCOPED_TRACE(policy + " rank " + (options.extra.contains("rank") ? options.extra.at("rank") : "none"));
    const plan::Plan plan = make(engine, policy, options);
    Sequence plain = engine.open(without_tier(plan)), sequence = engine.open(plan);
    for (Sequence* one : {&plain, &sequence}) one->prefill(std::span(tokens).first(kPrompt));
    const auto expected = audited(plain, middle);
    EXPECT_TRUE(same_bits(audited(sequence, middle), expected));
    EXPECT_GT(sequence.stats().recalled_pages, 0);
    EXPECT_EQ(sequence.stats().audited.mean, plain.stats().audited.mean);
    EXPECT_EQ(sequence.stats().audited.least, plain.stats().audited.least);
    for (Sequence* one : {&plain, &sequence}) one->correct(kPrompt / 2);
    Sequence fork = sequence.fork(plan);
    const auto after = decoded(plain, rest);
    EXPECT_TRUE(same_bits(decoded(fork, rest), after));
    EXPECT_TRUE(same_bits(decoded(sequence, rest), after));
  }
}

TEST(HostTier, ALosslessAnswerIsDenseDecodings) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  Request request;
  request.prompt = random_tokens(kPrompt, engine.tokenizer().size());
  request.max_tokens = 32;
  request.ignore_end = true;
  request.plan = make(engine, "full");
  const RequestId dense = engine.submit(request);
  while (engine.step()) {
  }
  for (const auto& [policy, options] : waiting_methods()) {
    request.plan = make(engine, policy, options);
    request.lossless = true;
    request.draft_tokens = 4;
    const RequestId id = engine.submit(request);
    while (engine.step()) {
    }
    EXPECT_EQ(engine.result(id).tokens, engine.result(dense).tokens) << policy;
    EXPECT_EQ(engine.result(id).stats.attention.recalled_pages, 0) << "nothing waits between drafts";
  }
}

TEST(HostTier, AForkToAnotherPlanHasEverything) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(kAll, engine.tokenizer().size());
  const plan::Plan plan = make(engine, "arkvale", budget("128", {{"resident", "128"}}));
  const std::span<const Token> rest = std::span(tokens).subspan(kPrompt + 10);
  Sequence source = engine.open(plan), plain = engine.open(without_tier(plan));
  for (Sequence* sequence : {&source, &plain}) {
    sequence->prefill(std::span(tokens).first(kPrompt));
    decoded(*sequence, std::span(tokens).subspan(kPrompt, 10));
  }
  for (const char* policy : {"full", "quest", "h2o"}) {
    plan::Plan other = make(engine, policy, policy == std::string("full") ? policies::PolicyOptions{} : budget("160"));
    Sequence expected = plain.fork(other);
    const auto logits = decoded(expected, rest);
    Sequence fork = source.fork(other);
    EXPECT_TRUE(same_bits(decoded(fork, rest), logits)) << policy;
  }
  Sequence same = source.fork(plan);
  const auto logits = decoded(source, rest);
  EXPECT_TRUE(same_bits(decoded(same, rest), logits));
}

TEST(HostTier, AForkOfTheSameMethodLetsWaitWhatItsSourceDoes) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(kAll, engine.tokenizer().size());
  const std::span<const Token> rest = std::span(tokens).subspan(kPrompt + 10);
  for (auto& [policy, options] : waiting_methods()) {
    SCOPED_TRACE(policy);
    const plan::Plan plan = make(engine, policy, options);
    policies::PolicyOptions less = options;
    less.budget = plan::parse_budget(policy == "arkvale" ? "96" : "48");
    const plan::Plan other = make(engine, policy, less);
    Sequence source = engine.open(plan), plain = engine.open(without_tier(plan));
    for (Sequence* sequence : {&source, &plain}) {
      sequence->prefill(std::span(tokens).first(kPrompt));
      decoded(*sequence, std::span(tokens).subspan(kPrompt, 10));
    }
    for (const plan::Plan& to : {plan, other}) {
      Sequence expected = plain.fork(without_tier(to));
      const auto logits = decoded(expected, rest);
      const std::int64_t free = engine.stats().pages_free;
      Sequence fork = source.fork(to);
      EXPECT_EQ(engine.stats().pages_free, free) << "nothing came back";
      EXPECT_TRUE(same_bits(decoded(fork, rest), logits));
      EXPECT_GT(fork.stats().recalled_pages, 0);
    }
    Sequence shorter = source.fork(plan, kPrompt);
    EXPECT_TRUE(same_bits(decoded(source, rest), decoded(plain, rest)));
  }
}

/// Folders of the files without a name that this process has open.
std::vector<std::string> folders_of_unnamed_files() {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the listing's own
    const std::filesystem::path to = std::filesystem::read_symlink(entry.path(), gone);
    if (!gone && to.filename().string().starts_with("glimpse-") && to.string().ends_with(" (deleted)")) {
      folders.push_back(to.parent_path().string());
    }
  }
  return folders;
}

TEST(HostTier, TheDefaultFolderIsOnADisk) {
  if (!memory_file_system("/var/tmp").empty()) GTEST_SKIP() << "/var/tmp is in memory here";
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  engine.open(make(engine, "arkvale", budget("128")));
  EXPECT_THAT(folders_of_unnamed_files(), testing::ElementsAre("/var/tmp"));
}

TEST(HostTier, AFolderInMemoryIsTakenWithAWarning) {
  if (memory_file_system("/dev/shm").empty()) GTEST_SKIP() << "/dev/shm is on a disk here";
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16);
  options.tier_folder = "/dev/shm";
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::warning && line.starts_with("--kv-tier-dir")) warnings.emplace_back(line);
  });
  Engine engine(options);
  engine.open(make(engine, "arkvale", budget("128")));
  engine.open(make(engine, "arkvale", budget("128")));  // said once
  set_log_sink({});
  EXPECT_THAT(warnings, testing::ElementsAre(testing::AllOf(HasSubstr("'/dev/shm'"), HasSubstr("tmpfs"),
                                                            HasSubstr("give a folder on a disk"))));
  EXPECT_THAT(folders_of_unnamed_files(), testing::ElementsAre("/dev/shm"));
}

TEST(HostTier, AFolderThatCannotHoldItIsRefusedAtOnce) {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16);
  options.tier_folder = "/no-such-folder-anywhere";
  Engine engine(options);
  EXPECT_THAT([&] { engine.open(make(engine, "arkvale", budget("128"))); },
              ThrowsMessage<UserError>(HasSubstr("no-such-folder-anywhere")));
  engine.open(make(engine, "quest", budget("128")));  // needs no folder
}

}  // namespace
}  // namespace glimpse::engine
