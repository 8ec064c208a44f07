// Kept prefixes over the end of an engine: the next one gives the same bits from them, and trusts no file.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>

#include "glimpse/base/error.h"
#include "glimpse/engine/service.h"
#include "glimpse/kernels/views.h"
#include "tests/engine/preempted_support.h"
#include "tests/engine/prefix_support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

namespace fs = std::filesystem;

/// Of one test, gone with it.
class StoreFolder {
 public:
  StoreFolder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string("prefixes-") + test->test_suite_name() + "-" + test->name();
    std::replace(name.begin(), name.end(), '/', '-');
    path = fs::temp_directory_path() / (name + std::to_string(::getpid()));
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~StoreFolder() { fs::remove_all(path); }
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;

  fs::path path;
};

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
  const StoreFolder owned;
  const fs::path& folder = owned.path;
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
  // Methods of other kinds: they read as much as beside what was never written.
  Engine fourth(storing_options(folder)), kept(prefix_options(-1));
  answered(kept, request(30, 8));
  std::uint32_t seed = 10;
  for (const char* policy : {"full", "quest", "evosparse"}) {
    const Request asked = prefix_request(plain, policy, request(60, ++seed).prompt);
    const Result result = answered(fourth, asked);
    EXPECT_TRUE(same_answer(result, answered(plain, asked))) << policy;
    EXPECT_EQ(result.stats.reused_tokens, answered(kept, asked).stats.reused_tokens) << policy;
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, StoredPrefixes, testing::ValuesIn(policy_names()), [](const auto& row) {
  std::string name = row.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(PrefixFolder, HasWhatGaveWay) {
  const StoreFolder owned;
  const fs::path& folder = owned.path;
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

std::set<fs::path> names_in(const fs::path& folder) {
  std::set<fs::path> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path());
  return names;
}

Request salted(const Engine& engine, const std::string& salt, std::uint32_t seed) {
  Request request = prefix_request(engine, "full", random_tokens(200, engine.tokenizer().size(), seed));
  request.cache_salt = salt;
  return request;
}

std::string bytes_of(const fs::path& file) {
  std::ifstream from(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(from), {}};
}

TEST(PrefixFolder, HasWhatGivesWayNextBeforeItDoes) {
  const StoreFolder owned;
  const fs::path ahead = owned.path / "ahead", at_end = owned.path / "at-end";
  for (const fs::path& folder : {ahead, at_end}) fs::create_directories(folder);
  const auto asked = [&](Engine& engine, std::uint32_t seed) { return full_request(engine, 200, 1, seed); };
  {
    EngineOptions options = with_room_for(512);
    options.prefix_bytes = -1;
    options.prefix_folder = ahead;
    options.prefix_piece_bytes = 5000;  // between whole pages
    Engine engine(options);
    answered(engine, asked(engine, 1));
    while (engine.write_prefixes()) {
    }
    EXPECT_EQ(files_in(ahead), 0U) << "over a quarter of the cache is free";
    answered(engine, asked(engine, 2));
    EXPECT_EQ(engine.stats().prefixes, 2);
    ASSERT_LT(engine.stats().pages_free, engine.stats().pages_total / 4);
    while (engine.write_prefixes()) {
    }
    EXPECT_EQ(engine.stats().prefixes, 2) << "nothing gave way";
    EXPECT_EQ(files_in(ahead), 1U) << "the older one, which may wait for the disk";
    answered(engine, asked(engine, 3));  // 1 gives way
    EXPECT_EQ(engine.stats().prefixes, 2);
    const Result again = answered(engine, asked(engine, 1));
    EXPECT_EQ(again.stats.reused_tokens, 200) << "of its file";
    EXPECT_EQ(again.tokens, alone(asked(engine, 1), with_room_for(512)));
  }
  {
    EngineOptions options = with_room_for(2048);
    options.prefix_bytes = -1;
    options.prefix_folder = at_end;
    Engine engine(options);
    for (const std::uint32_t seed : {1, 2, 3}) answered(engine, asked(engine, seed));
    EXPECT_EQ(files_in(at_end), 0U);
  }
  ASSERT_EQ(files_in(at_end), 3U);
  EXPECT_EQ(names_in(ahead).size(), 3U);
  for (const auto& entry : fs::directory_iterator(at_end)) {
    EXPECT_EQ(bytes_of(ahead / entry.path().filename()), bytes_of(entry.path())) << "piece by piece or at once";
  }
}

TEST(PrefixFolder, AServiceWritesWhileNobodyAsks) {
  const StoreFolder owned;
  EngineOptions options = with_room_for(512);
  options.prefix_bytes = -1;
  options.prefix_folder = owned.path;
  options.prefix_piece_bytes = 1;
  Engine engine(options);
  Service service(engine, {.queue = 4, .running = 1});
  Stream stream = service.submit(full_request(engine, 400, 1, 1));
  while (stream.next()) {
  }
  const auto done = [&] {
    const std::set<fs::path> names = names_in(owned.path);
    return !names.empty() && names.begin()->extension() == ".session";
  };
  for (int turn = 0; turn < 60'000 && !done(); ++turn) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(done());
}

TEST(PrefixFolder, WhatIsBegunAndNotNeededIsTakenAway) {
  const StoreFolder owned;
  EngineOptions options = with_room_for(512);
  options.prefix_bytes = -1;
  options.prefix_folder = owned.path;
  options.prefix_piece_bytes = 1;  // a page at a time
  Engine engine(options);
  const Request first = full_request(engine, 400, 8, 1);
  const Result answer = answered(engine, first);
  ASSERT_EQ(engine.stats().prefixes, 2) << "the end of the prompt, and the rows of all";
  const auto begun = [&] {
    std::set<fs::path> parts = names_in(owned.path);
    std::erase_if(parts, [](const fs::path& name) { return name.extension() != ".part"; });
    return parts;
  };
  const std::set<fs::path> of_prompt = begun();
  ASSERT_EQ(of_prompt.size(), 1U);
  for (int turn = 0; turn < 100'000 && (begun() == of_prompt || begun().empty()); ++turn) {
    if (!engine.write_prefixes()) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the disk is waited for
  }
  const std::set<fs::path> of_rows = begun();
  ASSERT_EQ(of_rows.size(), 1U);
  Request longer = full_request(engine, 20, 1, 2);
  longer.prompt = joined(joined(first.prompt, answer.tokens), longer.prompt);
  longer.reuse = Reuse::any;
  EXPECT_GE(answered(engine, longer).stats.reused_tokens, 400);
  EXPECT_FALSE(fs::exists(*of_rows.begin())) << "the rows of the longer one serve as well";
  EXPECT_FALSE(fs::exists(fs::path(*of_rows.begin()).replace_extension()));
}

TEST(PrefixFolder, IsBounded) {
  const StoreFolder owned;
  const fs::path& folder = owned.path;
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
  const StoreFolder owned;
  const fs::path& folder = owned.path;
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

TEST(PrefixFolder, AFileThatIsAnothersServesNobody) {
  const StoreFolder owned;
  const fs::path& folder = owned.path;
  {
    Engine engine(storing_options(folder));
    answered(engine, salted(engine, "a", 3));
  }
  const std::set<fs::path> of_a = names_in(folder);
  {
    Engine engine(storing_options(folder));
    answered(engine, salted(engine, "b", 4));
  }
  Engine engine(storing_options(folder)), plain(prefix_options(0));
  for (const fs::path& file : names_in(folder)) {
    if (of_a.contains(file)) continue;
    fs::copy_file(*of_a.begin(), folder / "copy");
    fs::rename(folder / "copy", file);
  }
  const Result result = answered(engine, salted(engine, "b", 4));
  EXPECT_EQ(result.stats.reused_tokens, 0);
  EXPECT_TRUE(same_answer(result, answered(plain, salted(plain, "b", 4))));
  EXPECT_EQ(answered(engine, salted(engine, "b", 3)).stats.reused_tokens, 0) << "rows of another salt";
}

TEST(PrefixFolder, WhatIsDamagedIsWrittenAgain) {
  const StoreFolder owned;
  const fs::path& folder = owned.path;
  {
    Engine engine(storing_options(folder));
    answered(engine, salted(engine, "", 3));
  }
  const std::set<fs::path> files = names_in(folder);
  for (const fs::path& path : files) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(fs::file_size(path) / 2));
    const int old = file.peek();
    file.seekp(file.tellg());
    file.put(static_cast<char>(~old));
  }
  for (const std::int64_t reused : {0, 200}) {
    Engine engine(storing_options(folder));
    EXPECT_EQ(answered(engine, salted(engine, "", 3)).stats.reused_tokens, reused);
  }
  EXPECT_EQ(names_in(folder), files);
}

TEST(PrefixFolder, PartsThatASaveLeftAreTakenAway) {
  const StoreFolder owned;
  const fs::path left = owned.path / "prefix-1.session.part", held = owned.path / "prefix-2.session.part",
                 other = owned.path / "prefix-3.session.part", mine = owned.path / "notes.session.part";
  for (const fs::path& file : {left, held, mine}) std::ofstream(file) << "GLIMPSES and no more";
  std::ofstream(other) << "somebody's own";
  const int lock = ::open(held.c_str(), O_RDWR);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  const Engine engine(storing_options(owned.path));
  EXPECT_EQ(names_in(owned.path), (std::set<fs::path>{held, other, mine}));
  ::close(lock);
}

/// With one answer token the rows of all are those of the prompt: one file.
Request short_request(const Engine& engine, std::uint32_t seed) {
  Request request = prefix_request(engine, "full", random_tokens(256, engine.tokenizer().size(), seed));
  request.max_tokens = 1;
  return request;
}

TEST(PrefixFolder, TheFileUsedLongestAgoGoesFirst) {
  const StoreFolder owned;
  EngineOptions options = storing_options(owned.path);
  std::int64_t pages = 0, page_bytes = 0;
  {
    Engine engine(options);
    answered(engine, short_request(engine, 9));
    pages = engine.stats().pages_kept;
    page_bytes = static_cast<std::int64_t>(engine.row_pair_bytes()) * kernels::kPageTokens;
  }
  ASSERT_EQ(files_in(owned.path), 1U);
  const auto bytes = static_cast<std::int64_t>(fs::file_size(*names_in(owned.path).begin()));
  fs::remove(*names_in(owned.path).begin());
  options.prefix_bytes = pages * page_bytes * 3 / 2;  // one, and what lies beside its pages
  options.prefix_folder_bytes = bytes * 5 / 2;
  {
    Engine engine(options);
    const auto reused = [&](std::uint32_t seed) {
      return answered(engine, short_request(engine, seed)).stats.reused_tokens;
    };
    for (const std::uint32_t seed : {1, 2, 3}) EXPECT_EQ(reused(seed), 0);
    EXPECT_EQ(reused(1), 256) << "of its file; 3 is written in place of 2";
    EXPECT_EQ(reused(3), 256);
    EXPECT_EQ(reused(1), 256);
    EXPECT_EQ(reused(2), 0);
  }
  options.prefix_folder_bytes = bytes * 3 / 2;
  const Engine less(options);
  EXPECT_EQ(files_in(owned.path), 1U) << "a lower bound holds at once";
}

TEST(PrefixFolder, ThatIsNoneIsRefused) {
  const StoreFolder owned;
  EXPECT_THAT([] { Engine{storing_options("/no/such/folder")}; }, ThrowsMessage<UserError>(HasSubstr("/no/such")));
  const fs::path file = owned.path / "file";
  std::ofstream(file) << "no folder";
  fs::permissions(file, fs::perms::owner_all);
  EXPECT_THAT([&] { Engine{storing_options(file)}; }, ThrowsMessage<UserError>(HasSubstr("give one that can be")));
  EngineOptions options = storing_options(owned.path);
  options.prefix_bytes = 0;
  EXPECT_THAT([&] { Engine{options}; }, ThrowsMessage<UserError>(HasSubstr("leave the folder out")));
}

}  // namespace
}  // namespace glimpse::engine
