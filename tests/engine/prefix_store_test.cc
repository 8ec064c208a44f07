// Kept prefixes over the end of an engine: the next one gives the same bits from them, and trusts no file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "glimpse/base/error.h"
#include "tests/engine/preempted_support.h"
#include "tests/engine/prefix_support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

namespace fs = std::filesystem;

fs::path store_folder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string("prefixes-") + test->test_suite_name() + "-" + test->name();
  std::replace(name.begin(), name.end(), '/', '-');
  const fs::path folder = fs::temp_directory_path() / (name + std::to_string(::getpid()));
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

EngineOptions storing_options(const fs::path& folder) {
  EngineOptions options = prefix_options(-1);
  options.prefix_folder = folder;
  return options;
}

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

class StoredPrefixes : public testing::TestWithParam<std::string> {};

TEST_P(StoredPrefixes, GiveTheBitsOfAMissInTheNextEngine) {
  const fs::path folder = store_folder();
  Engine plain(prefix_options(0));
  const std::vector<Token> document = random_tokens(400, plain.tokenizer().size(), 7);
  const auto request = [&](std::size_t more, std::uint32_t seed) {
    return prefix_request(plain, GetParam(), joined(document, random_tokens(more, plain.tokenizer().size(), seed)));
  };
  {
    Engine first(storing_options(folder));
    answered(first, request(30, 8));
    EXPECT_EQ(files_in(folder), 0U) << "nothing had to give way";
  }
  EXPECT_GT(files_in(folder), 0U);
  Engine second(storing_options(folder));
  const Result same = answered(second, request(30, 8));
  EXPECT_TRUE(same_answer(same, answered(plain, request(30, 8))));
  EXPECT_EQ(same.stats.reused_tokens, 430);
  Engine third(storing_options(folder));
  const Result other = answered(third, request(50, 9));
  EXPECT_TRUE(same_answer(other, answered(plain, request(50, 9))));
  const bool observes_all = request(50, 9).plan.prefill.observe == plan::Observe::all;
  EXPECT_EQ(other.stats.reused_tokens > 0, !observes_all);
  expect_only_kept(third);
  Engine fourth(storing_options(folder));
  const Request dense = prefix_request(plain, "full", request(60, 10).prompt);
  EXPECT_TRUE(same_answer(answered(fourth, dense), answered(plain, dense)));
}

INSTANTIATE_TEST_SUITE_P(Policies, StoredPrefixes,
                         testing::Values("full", "quest", "tidal", "h2o", "streaming", "evosparse", "lychee-cluster",
                                         "kascade", "arkvale", "shadowkv", "seer"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(PrefixFolder, HasWhatGaveWay) {
  const fs::path folder = store_folder();
  EngineOptions options = storing_options(folder);
  options.prefix_bytes = 1;  // nothing stays in memory
  Engine engine(options);
  const Request request = prefix_request(engine, "full", random_tokens(200, engine.tokenizer().size(), 3));
  const Result first = answered(engine, request);
  EXPECT_EQ(engine.stats().prefixes, 0);
  EXPECT_EQ(files_in(folder), 2U) << "the end of the prompt, and the rows of all";
  EXPECT_TRUE(same_answer(answered(engine, request), first));
  EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
}

TEST(PrefixFolder, IsBounded) {
  const fs::path folder = store_folder();
  EngineOptions options = storing_options(folder);
  {
    Engine engine(options);
    answered(engine, prefix_request(engine, "full", random_tokens(256, engine.tokenizer().size(), 1)));
  }
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) bytes += static_cast<std::int64_t>(entry.file_size());
  fs::remove_all(folder);
  fs::create_directories(folder);
  options.prefix_folder_bytes = bytes + bytes / 4;
  for (const std::uint32_t seed : {1, 2, 3}) {
    Engine engine(options);
    answered(engine, prefix_request(engine, "full", random_tokens(256, engine.tokenizer().size(), seed)));
  }
  bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) bytes += static_cast<std::int64_t>(entry.file_size());
  EXPECT_LE(bytes, options.prefix_folder_bytes);
  Engine engine(options);
  const auto reused = [&](std::uint32_t seed) {
    return answered(engine, prefix_request(engine, "full", random_tokens(256, engine.tokenizer().size(), seed)))
        .stats.reused_tokens;
  };
  EXPECT_GT(reused(3), 0);
  EXPECT_EQ(reused(1), 0) << "the oldest went";
}

TEST(PrefixFolder, IsNotTrusted) {
  const fs::path folder = store_folder();
  Request request;
  {
    Engine engine(storing_options(folder));
    request = prefix_request(engine, "quest", random_tokens(200, engine.tokenizer().size(), 3));
    request.cache_salt = "a";
    answered(engine, request);
  }
  {
    Engine other(storing_options(folder));
    Request salted = request;
    salted.cache_salt = "b";
    EXPECT_EQ(answered(other, salted).stats.reused_tokens, 0);
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    file.put('\x5a');
  }
  std::ofstream(folder / "prefix-0.session") << "no session";
  std::ofstream(folder / "something.else") << "not ours";
  const std::size_t files = files_in(folder);
  Engine engine(storing_options(folder)), plain(prefix_options(0));
  const Result result = answered(engine, request);
  EXPECT_EQ(result.reason, FinishReason::length) << result.error;
  EXPECT_TRUE(same_answer(result, answered(plain, request)));
  EXPECT_EQ(files_in(folder), files);
  expect_only_kept(engine);
}

TEST(PrefixFolder, ThatIsNoneIsRefused) {
  EXPECT_THAT([] { Engine{storing_options("/no/such/folder")}; }, ThrowsMessage<UserError>(HasSubstr("/no/such")));
  EngineOptions options = storing_options(store_folder());
  options.prefix_bytes = 0;
  EXPECT_THAT([&] { Engine{options}; }, ThrowsMessage<UserError>(HasSubstr("leave the folder out")));
}

}  // namespace
}  // namespace glimpse::engine
