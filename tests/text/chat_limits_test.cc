// Chat templates that loop, grow, recurse or crash: each ends in one UserError, and leaves no process and no open file.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "glimpse/base/error.h"
#include "glimpse/base/sanitizers.h"
#include "glimpse/text/chat_template.h"
#include "glimpse/text/child_process.h"
#include "glimpse/text/utf8.h"
#include "templates.h"

namespace glimpse::text::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Messages = std::vector<ChatMessage>;

constexpr ChatLimits kShort{.milliseconds = 300};
constexpr ChatLimits kPatient{.milliseconds = 600'000};  // so that another limit ends it on any machine
/// Small blocks take several times as much of a sanitizer's allocator.
constexpr ChatLimits kRoomy{.milliseconds = 600'000, .memory = std::size_t{kSanitized ? 4096U : 256U} << 20};

std::string text_of(const std::vector<ChatPart>& parts) {
  std::string text;
  for (const ChatPart& part : parts) text += part.text;
  return text;
}

std::string error_of(const std::string& source, const ChatLimits& limits = {}) {
  const Messages messages{{"user", "hello"}};
  try {
    ChatTemplate(source, "<s>", "</s>", limits).render(messages, {});
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

class HostileTemplate : public ::testing::TestWithParam<NamedTemplate> {};
INSTANTIATE_TEST_SUITE_P(Chat, HostileTemplate, ::testing::ValuesIn(hostile_templates()),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(HostileTemplate, EndsInOneLineThatNamesTheCure) {
  EXPECT_THAT(error_of(GetParam().source(), kShort),
              AllOf(HasSubstr("--raw"), Not(HasSubstr("\n")),
                    AnyOf(HasSubstr("runs for more than 0.3 s"), HasSubstr("takes more than 256 MiB"),
                          HasSubstr("deeper than 16 MiB of stack"), HasSubstr("crashes the engine"),
                          HasSubstr("cannot be read"))));
}

TEST(ChatLimits, EachIsNamed) {
  EXPECT_THAT(
      error_of("{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}", {.milliseconds = 50}),
      HasSubstr("more than 0.05 s"));
  EXPECT_THAT(error_of("{{ 'abcdefgh' * 1000000000000 }}", {.milliseconds = 600'000, .memory = 64u << 20}),
              HasSubstr("more than 64 MiB"));
  EXPECT_THAT(error_of("{{" + std::string(200'000, '('), kPatient), HasSubstr("deeper than"));
  EXPECT_THAT(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", kRoomy), HasSubstr("deeper than"));
  EXPECT_THAT(error_of("{{ 1 is divisibleby(0) }}", kPatient), HasSubstr("crashes"));
}

TEST(ChatLimits, DepthThatNoModelHasPasses) {
  std::string blocks, ends;
  for (int i = 0; i < 1000; ++i) {
    blocks += "{%- if true -%}";
    ends += "{%- endif -%}";
  }
  const std::string brackets = "{{" + std::string(500, '(') + "messages[0].content" + std::string(500, ')') + "}}";
  const Messages messages{{"user", "hello"}};
  EXPECT_EQ(text_of(ChatTemplate(blocks + brackets + ends, "", "", kPatient).render(messages, {})), "hello");
}

TEST(ChatLimits, GrowWithTheMessages) {
  const Messages messages{{"user", std::string(24u << 20, 'x')}};
  for (const NamedTemplate& honest : honest_templates()) {
    SCOPED_TRACE(honest.name);
    EXPECT_GT(text_of(ChatTemplate(honest.source(), "", "", kPatient).render(messages, {})).size(), 24u << 20);
  }
}

TEST(ChatLimits, TheTemplatesErrorIsOneLineOfItsOwnWords) {
  EXPECT_EQ(error_of("a\n{{ raise_exception('roles\nmust \x1b[31malternate') }}", kPatient),
            "the model's chat template refuses the messages: Jinja Exception: roles must ?[31malternate (line 2, "
            "column 19); change them, or use --raw");
  const std::string longest = error_of("{{ raise_exception('" + std::string(3000, 'a') + "') }}", kPatient);
  EXPECT_LT(longest.size(), 600u);
  EXPECT_THAT(longest, HasSubstr("aaa... (line 1"));
  EXPECT_EQ(error_of("{{ x", kPatient).find('\n'), std::string::npos);
  std::string chinese = "{{ raise_exception('a";
  for (int i = 0; i < 1000; ++i) chinese += "\u4e2d";
  const std::string cut = error_of(chinese + "\xff') }}", kPatient);
  EXPECT_THAT(cut, HasSubstr("a\u4e2d\u4e2d"));
  EXPECT_EQ(find_invalid_utf8(cut), std::nullopt);
  EXPECT_THAT(error_of("{{ raise_exception('\xff\xe4') }}", kPatient), HasSubstr(": ?? ("));
}

std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

bool has_child() {
  return ::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD;
}

TEST(ChatProcesses, LeaveNothingBehind) {
  const Messages messages{{"user", "hello"}};
  const ChatTemplate good("{{ messages[0].content }}", "", "");
  const std::ptrdiff_t files = open_files();
  for (int i = 0; i < 200; ++i) {
    if (i % 20 == 0) error_of("{{ range(9000000000) | length }}", {.milliseconds = 20});
    if (i % 20 == 1) error_of("{{ 1 is divisibleby(0) }}");
    ASSERT_EQ(text_of(good.render(messages, {})), "hello");
  }
  EXPECT_EQ(open_files(), files);
  EXPECT_FALSE(has_child());
}

/// The disposition of a signal, until the end of a scope.
class Disposition {
 public:
  Disposition(int signal, void (*handler)(int)) : signal_(signal) {
    struct sigaction action {};
    action.sa_handler = handler;
    ::sigaction(signal, &action, &before_);
  }
  ~Disposition() { ::sigaction(signal_, &before_, nullptr); }

 private:
  int signal_;
  struct sigaction before_ {};
};

void expect_renders() {
  const Messages messages{{"user", "hello"}};
  const ChatTemplate good("{{ messages[0].content }}", "", "");
  for (int i = 0; i < 20; ++i) ASSERT_EQ(text_of(good.render(messages, {})), "hello");
  EXPECT_THAT(error_of("{{ range(9000000000) | length }}", {.milliseconds = 20}), HasSubstr("0.02 s"));
  EXPECT_THAT(error_of("{{ 1 is divisibleby(0) }}"), HasSubstr("crashes"));
  EXPECT_FALSE(has_child());
}

TEST(ChatProcesses, WorkInProgramsThatIgnoreOrReapTheirChildren) {
  {
    const Disposition ignored(SIGCHLD, SIG_IGN);
    expect_renders();
  }
  const Disposition reaped(SIGCHLD, [](int) {
    const int before = errno;
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    errno = before;
  });
  expect_renders();
}

std::atomic<int> faults_seen = 0;

TEST(ChatProcesses, RunNoHandlerOfTheProgram) {
  const Disposition abort(SIGABRT, [](int) { std::quick_exit(99); });
  const Disposition fault(SIGFPE, [](int) { ++faults_seen; });
  EXPECT_THAT(error_of("{{ 1 is divisibleby(0) }}"), HasSubstr("crashes"));
  EXPECT_EQ(faults_seen, 0);
}

TEST(ChatProcesses, WorkWithoutStandardInput) {
  const int saved = ::dup(0);
  ::close(0);
  const Messages messages{{"user", "hello"}};
  std::string text;
  try {
    text = text_of(ChatTemplate("{{ messages[0].content }}", "", "").render(messages, {}));
  } catch (const UserError& error) {
    text = error.what();
  }
  ::dup2(saved, 0);
  ::close(saved);
  EXPECT_EQ(text, "hello");
}

/// What a rendering says in a process of its own, under a limit of none of something.
std::string error_under_no(decltype(RLIMIT_CORE) what) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    // The number of processes does not bind root.
    if (what == RLIMIT_NPROC && ::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    rlimit limit{};
    ::getrlimit(what, &limit);
    limit.rlim_cur = 0;
    if (::setrlimit(what, &limit) != 0) ::_exit(3);
    const std::string error = error_of("{{ messages[0].content }}");
    const bool told = ::write(ends[1], error.data(), error.size()) == static_cast<ssize_t>(error.size());
    ::_exit(told ? 0 : 4);
  }
  ::close(ends[1]);
  std::string error(1000, '\0');
  error.resize(static_cast<std::size_t>(std::max<ssize_t>(::read(ends[0], error.data(), error.size()), 0)));
  ::close(ends[0]);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << error;
  return error;
}

TEST(ChatProcesses, ThatTheSystemRefusesAreTheUsersError) {
  EXPECT_THAT(error_under_no(RLIMIT_NPROC), AllOf(HasSubstr("Resource temporarily unavailable"), HasSubstr("--raw")));
  // UndefinedBehaviorSanitizer reads an object's type through a pipe of its own: without a file to open it takes every
  // object for none, and ends the program at the first virtual call.
  if (!kAddressSanitizer) {
    EXPECT_THAT(error_under_no(RLIMIT_NOFILE), AllOf(HasSubstr("Too many open files"), HasSubstr("--raw")));
  }
}

TEST(ChatProcesses, RunBesideEachOther) {
  // What a child that stands still (kChildTries) costs; what these compute takes a tenth of it under a sanitizer.
  constexpr ChatLimits kSoon{.milliseconds = 15'000};
  const ChatTemplate good("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", "", "", kSoon);
  const ChatTemplate bad("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "", "", kSoon);
  std::atomic<int> wrong = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const std::string content(static_cast<std::size_t>(thread) * 50'000 + 1, static_cast<char>('a' + thread));
      const Messages messages{{"user", content}};
      for (int i = 0; i < 25; ++i) {
        if (text_of(good.render(messages, {})) != "[user]" + content) ++wrong;
        if (i % 10 != 0) continue;
        try {
          bad.render(messages, {});
          ++wrong;
        } catch (const UserError&) {
          ++refused;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(refused, 12);
  EXPECT_FALSE(has_child());
}

TEST(ChildProcess, GivesBackWhatItsWorkReturns) {
  const ChildLimits limits{std::chrono::minutes(10), 64u << 20};
  const std::string large(20u << 20, 'z');
  EXPECT_EQ(run_in_child([&] { return large; }, limits).bytes, large);
  EXPECT_EQ(run_in_child([] { return std::string(); }, limits).end, ChildEnd::answer);
  EXPECT_EQ(run_in_child([]() -> std::string { throw std::runtime_error("x"); }, limits).end, ChildEnd::crash);
  EXPECT_EQ(run_in_child([]() -> std::string { std::abort(); }, limits).end, ChildEnd::crash);
  EXPECT_EQ(run_in_child([]() -> std::string { ::_exit(0); }, limits).end, ChildEnd::crash);
  EXPECT_EQ(run_in_child([] { return std::string(std::size_t{1} << 30, 'x'); }, limits).end, ChildEnd::memory);
}

/// What a process that is forked again sees of the one before it.
class SharedCount {
 public:
  SharedCount()
      : count_(static_cast<std::atomic<int>*>(
            ::mmap(nullptr, sizeof *count_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedCount() { ::munmap(count_, sizeof *count_); }
  std::atomic<int>& operator*() const { return *count_; }

 private:
  std::atomic<int>* count_;
};

TEST(ChildProcess, IsStartedAgainWhenItOnlyWaited) {
  const ChildLimits limits{std::chrono::milliseconds(500), 64u << 20};
  const SharedCount starts;
  const auto wait_until = [&](int start) {
    return [&, start]() -> std::string {
      while (++*starts < start) ::sleep(1000);
      return "answer";
    };
  };
  EXPECT_EQ(run_in_child(wait_until(2), limits).bytes, "answer");
  *starts = 0;
  EXPECT_EQ(run_in_child(wait_until(kChildTries + 1), limits).end, ChildEnd::time);
  EXPECT_EQ(*starts, kChildTries);
}

TEST(ChildProcess, HasNoFileOfTheProgram) {
  const std::string open = run_in_child(
                               [] {
                                 std::string files;
                                 for (int file = 0; file < 100; ++file) {
                                   if (::fcntl(file, F_GETFD) >= 0) files += std::to_string(file) + ' ';
                                 }
                                 return files;
                               },
                               {std::chrono::minutes(10), 64u << 20})
                               .bytes;
  EXPECT_EQ(open, "0 ");
}

}  // namespace
}  // namespace glimpse::text::testing
