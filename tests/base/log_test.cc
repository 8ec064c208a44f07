#include "glimpse/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace glimpse {
namespace {

class Log : public testing::Test {
 protected:
  ~Log() override { set_log_sink({}); }
};

TEST_F(Log, LinesReachTheSinkUnchanged) {
  std::vector<std::pair<LogLevel, std::string>> lines;
  set_log_sink([&](LogLevel level, std::string_view text) { lines.emplace_back(level, text); });
  log_message(LogLevel::debug, "a");
  log_message(LogLevel::warning, "100 % {} %s");
  set_log_sink({});
  log_message(LogLevel::warning, "nobody hears this");
  EXPECT_THAT(lines, testing::ElementsAre(testing::Pair(LogLevel::debug, "a"),
                                          testing::Pair(LogLevel::warning, "100 % {} %s")));
}

TEST_F(Log, StderrSinkShowsFromALevelOn) {
  testing::internal::CaptureStderr();
  log_to_stderr(LogLevel::info);
  log_message(LogLevel::debug, "hidden");
  log_message(LogLevel::info, "shown {}");
  log_message(LogLevel::warning, "loud");
  set_log_sink({});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::AllOf(testing::HasSubstr("shown {}"), testing::HasSubstr("loud")));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("hidden")));
}

}  // namespace
}  // namespace glimpse
