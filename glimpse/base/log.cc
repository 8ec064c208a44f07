#include "glimpse/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

namespace glimpse {
namespace {

std::function<void(LogLevel, std::string_view)>& sink() {
  static std::function<void(LogLevel, std::string_view)> current;
  return current;
}

}  // namespace

void set_log_sink(std::function<void(LogLevel, std::string_view)> replacement) {
  sink() = std::move(replacement);
}

void log_to_stderr(LogLevel least) {
  auto logger = std::make_shared<spdlog::logger>("glimpse", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%^%l%$: %v");
  logger->set_level(spdlog::level::debug);
  set_log_sink([logger, least](LogLevel level, std::string_view text) {
    if (level < least) return;
    constexpr spdlog::level::level_enum levels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn};
    logger->log(levels[static_cast<int>(level)], "{}", text);
  });
}

void log_message(LogLevel level, std::string_view text) {
  if (sink()) sink()(level, text);
}

}  // namespace glimpse
