// Files that are no good: over 200 by truncation, flips and lies (with checksums made to fit), all refused and left
// alone; and writers killed at random moments.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "glimpse/base/error.h"
#include "tests/engine/session_support.h"
#include "tests/support/reseal_session.h"

namespace glimpse::engine {
namespace {

using Bytes = std::vector<std::byte>;

template <class T>
T get(const Bytes& bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
template <class T>
void set(Bytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// A small session of each kind of state, and the engine that takes it.
class BadSessions : public testing::TestWithParam<std::string> {
 protected:
  BadSessions() : engine_(options()), file_(session_path("file")) {
    plan_ = make(engine_, GetParam(), GetParam() == "full" ? policies::PolicyOptions{} : budget("64"));
    const std::vector<Token> tokens = random_tokens(260, engine_.tokenizer().size());
    Sequence sequence = engine_.open(plan_);
    sequence.prefill(std::span(tokens).first(200));
    for (const Token token : std::span(tokens).last(60)) sequence.decode(token);
    sequence.save(file_);
    good_ = read_bytes(file_);
  }

  static EngineOptions options() {
    EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16, 1);
    options.context = 512;
    return options;
  }

  void expect_refused(const Bytes& bytes, const std::string& what) {
    write_bytes(file_, bytes);
    try {
      engine_.load(file_, plan_);
      ADD_FAILURE() << what << " is taken";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(file_.string()), std::string::npos) << error.what();
    }
    EXPECT_EQ(read_bytes(file_), bytes) << what;
    ++refused_;
  }
  void expect_lie_refused(Bytes bytes, const std::string& what) {
    reseal_session(bytes);
    expect_refused(bytes, what);
  }

  Engine engine_;
  std::filesystem::path file_;
  plan::Plan plan_;
  Bytes good_;
  int refused_ = 0;
};

TEST_P(BadSessions, TruncationsFlipsAndLiesAreRefused) {
  std::mt19937 random(5);
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  for (int i = 0; i < 60; ++i) {
    const std::size_t kept = i < 20 ? static_cast<std::size_t>(i) * 7 : below(good_.size());
    expect_refused({good_.begin(), good_.begin() + static_cast<std::ptrdiff_t>(kept)},
                   "cut at " + std::to_string(kept));
  }
  Bytes longer = good_;
  longer.resize(good_.size() + 64);
  expect_refused(longer, "zeros behind it");
  for (int i = 0; i < 100; ++i) {
    Bytes flipped = good_;
    const std::size_t at = i < 40 ? below(1024) : below(good_.size());
    flipped[at] ^= static_cast<std::byte>(1U << below(8));
    expect_refused(flipped, "a bit flipped at " + std::to_string(at));
  }

  // Lies, under checksums that fit: the table, then sections.
  const std::uint64_t numbers[] = {0, 1, 63, good_.size(), 1ULL << 31, 1ULL << 40, ~0ULL - 8, ~0ULL};
  for (const SectionKind kind : {SectionKind::about, SectionKind::tokens, SectionKind::tables, SectionKind::layer}) {
    const SectionPlace place = find_section(good_, kind);
    for (const std::uint64_t number : numbers) {
      Bytes bytes = good_;
      set(bytes, place.at + offsetof(SessionEntry, bytes), number);
      expect_lie_refused(bytes, "a section of other bytes");
      bytes = good_;
      set(bytes, place.at + offsetof(SessionEntry, offset), number);
      expect_lie_refused(bytes, "a section elsewhere");
    }
    Bytes bytes = good_;
    set(bytes, place.at + offsetof(SessionEntry, kind), std::uint32_t{77});
    expect_lie_refused(bytes, "a section that is not there");
  }
  for (const std::uint32_t sections : {0U, 1U, 9U, 11U, 1U << 15, ~0U}) {
    Bytes bytes = good_;
    set(bytes, offsetof(SessionHeader, sections), sections);
    expect_lie_refused(bytes, "another number of sections");
  }
  const SectionPlace tokens = find_section(good_, SectionKind::tokens);
  for (const Token token : {-1, engine_.tokenizer().size(), 1 << 30}) {
    Bytes bytes = good_;
    set(bytes, tokens.entry.offset + 40, token);
    expect_lie_refused(bytes, "a token outside the vocabulary");
  }
  const SectionPlace about = find_section(good_, SectionKind::about);
  const std::size_t tail = about.entry.offset + about.entry.bytes - 4 * sizeof(std::int64_t);
  for (const std::int64_t number : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{259}, std::int64_t{1} << 40}) {
    for (std::size_t field = 0; field < 4; ++field) {
      Bytes bytes = good_;
      const auto old = get<std::int64_t>(bytes, tail + field * 8);
      // The number of steps is only told to traces: any in the sequence will do.
      if (old == number || (field == 3 && number >= 0 && number < 260)) continue;
      set(bytes, tail + field * 8, number);
      expect_lie_refused(bytes, "count " + std::to_string(field) + " = " + std::to_string(number));
    }
  }
  const SectionPlace plan = find_section(good_, SectionKind::plan);
  for (const char letter : {'\0', '}', '\xff'}) {
    Bytes bytes = good_;
    set(bytes, plan.entry.offset + 3, letter);
    expect_lie_refused(bytes, "a plan that is no plan");
  }
  const SectionPlace tables = find_section(good_, SectionKind::tables);
  for (const std::int32_t slots : {-1, 0, 1 << 30}) {
    Bytes bytes = good_;
    set(bytes, tables.entry.offset, slots);
    expect_lie_refused(bytes, "a head of other slots");
  }
  EXPECT_GE(refused_, 200);
}

// Whatever a flipped bit under fitting checksums says, it is refused or it is a sequence that can go on.
TEST_P(BadSessions, AnyByteOfTheStateIsHeldAgainstThePlan) {
  std::mt19937 random(9);
  int taken = 0;
  for (const SectionKind kind : {SectionKind::state, SectionKind::tables, SectionKind::about, SectionKind::plan}) {
    const SectionPlace place = find_section(good_, kind);
    for (int i = 0; i < 60; ++i) {
      Bytes bytes = good_;
      const std::size_t at = place.entry.offset + random() % place.entry.bytes;
      bytes[at] ^= static_cast<std::byte>(1U << random() % 8);
      reseal_session(bytes);
      write_bytes(file_, bytes);
      try {
        Sequence sequence = engine_.load(file_, plan_);
        ++taken;
        for (int step = 0; step < 3; ++step) sequence.decode(7);
      } catch (const UserError&) {
      }
    }
  }
  EXPECT_LT(taken, 240);
}

INSTANTIATE_TEST_SUITE_P(Kinds, BadSessions,
                         testing::Values("full", "tova", "razor", "evosparse", "lychee-cluster", "clusterkv",
                                         "shadowkv", "arkvale", "h2o"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

constexpr std::size_t kSections = 4, kSectionBytes = 1 << 20;

/// All of a section's bytes say which save it is of.
void save_pattern(const std::filesystem::path& file, std::uint8_t number) {
  SessionWriter writer(file, kSections);
  const Bytes pattern(kSectionBytes, static_cast<std::byte>(number));
  for (std::uint32_t section = 0; section < kSections; ++section) {
    writer.begin(SectionKind::layer, section);
    writer.append(pattern);
  }
  writer.commit();
}

/// The number of the save that is in the file, whole; throws where it is not.
int pattern_of(const std::filesystem::path& file) {
  const SessionReader reader(file);
  const auto first = reader.section(SectionKind::layer, 0)[0];
  for (std::uint32_t section = 0; section < kSections; ++section) {
    const auto bytes = reader.section(SectionKind::layer, section);
    if (bytes.size() != kSectionBytes ||
        std::any_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte != first; })) {
      throw std::runtime_error("a file of two saves");
    }
  }
  return static_cast<int>(first);
}

// A writer saves over and over and says when each save is done; it is killed at a random moment of the next one.
TEST(KilledWriters, LeaveTheOldFileOrTheNewOne) {
  const auto file = session_path("file");
  std::mt19937 random(3);
  save_pattern(file, 200);
  int torn = 0;
  for (int round = 0; round < 60; ++round) {
    int pipe_ends[2] = {};
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const int before = pattern_of(file);
    const pid_t writer = ::fork();
    ASSERT_GE(writer, 0);
    if (writer == 0) {
      for (std::uint8_t number = 0; number < 100; ++number) {
        try {
          save_pattern(file, number);
        } catch (...) {
          ::_exit(3);
        }
        if (::write(pipe_ends[1], &number, 1) != 1) ::_exit(4);
      }
      ::_exit(0);
    }
    ::close(pipe_ends[1]);
    std::uint8_t done = 0;
    const bool some = random() % 2 == 0 && ::read(pipe_ends[0], &done, 1) == 1;
    ::usleep(static_cast<useconds_t>(random() % 20000));
    ::kill(writer, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(writer, &status, 0), writer);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it was still writing";
    std::uint8_t last = 0;
    int saves = some ? 1 : 0;
    while (::read(pipe_ends[0], &last, 1) == 1) saves = last + 1;
    ::close(pipe_ends[0]);
    const int now = pattern_of(file);
    // What was said to be done is there, or the save after it; without one, perhaps what was there before.
    EXPECT_TRUE(now == saves || (saves > 0 && now == saves - 1) || (saves == 0 && now == before))
        << now << " " << saves;
    torn += std::filesystem::exists(file.string() + ".part");
  }
  EXPECT_GT(torn, 0) << "some were killed amid a save";
  save_pattern(file, 201);  // and what they left is in nobody's way
  EXPECT_EQ(pattern_of(file), 201);
  EXPECT_FALSE(std::filesystem::exists(file.string() + ".part"));
}

TEST(SessionWriter, OneAtATime) {
  const auto file = session_path("file");
  SessionWriter first(file, 1);
  EXPECT_THROW(SessionWriter(file, 1), UserError);
}

TEST(SessionWriter, WhatIsNotCommittedLeavesNothing) {
  const auto file = session_path("file");
  {
    SessionWriter writer(file, 2);
    writer.begin(SectionKind::about);
  }
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_FALSE(std::filesystem::exists(file.string() + ".part"));
}

TEST(SessionWriter, AnotherFileInThePlaceOfThePartStays) {
  const auto file = session_path("file");
  const std::filesystem::path part = file.string() + ".part";
  std::ofstream(part) << "notes\n";
  EXPECT_THROW(SessionWriter(file, 1), UserError);
  EXPECT_EQ(std::filesystem::file_size(part), 6u);
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(SessionWriter, NamesThatCannotBeAreRefused) {
  const auto folder = session_path("file").parent_path();
  for (const std::size_t length : {251, 256, 5000}) {
    EXPECT_THROW(require_session_place(folder / std::string(length, 'y')), UserError) << length;
  }
  require_session_place(folder / std::string(250, 'y'));
  const auto loop = session_path("loop");
  std::filesystem::create_symlink(loop.filename(), loop);
  EXPECT_THROW(require_session_place(loop), UserError);
}

TEST(SessionWriter, ALinkStaysOneAndModesStay) {
  const auto file = session_path("file"), link = session_path("link");
  save_pattern(file, 1);
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::permissions(file, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  std::filesystem::create_symlink(file, link);
  save_pattern(link, 2);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(pattern_of(file), 2);
  EXPECT_NE(std::filesystem::status(file).permissions() & std::filesystem::perms::group_read,
            std::filesystem::perms::none);
}

}  // namespace
}  // namespace glimpse::engine
