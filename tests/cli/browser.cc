#include "tests/cli/browser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "tests/cli/process.h"
#include "tests/support/find_browser.h"

namespace glimpse::cli {
namespace {

std::string output_of(const std::string& command) {
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  char buffer[65536];
  for (std::size_t got = 1; pipe != nullptr && got > 0;) {
    got = std::fread(buffer, 1, sizeof buffer, pipe.get());
    text.append(buffer, got);
  }
  return text;
}

std::string decoded(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      bytes += text[i];
      continue;
    }
    bytes += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
    i += 2;
  }
  return bytes;
}

}  // namespace

std::optional<std::string> find_browser() {
  return reference::find_browser();
}

nlohmann::json ask_page(const std::string& browser, const std::filesystem::path& page, const std::string& script) {
  const std::string answer_start = "data-answer=\"";
  const auto copy = scratch("asked.html"), profile = scratch("profile");
  write_file(copy, read_file(page) + "<script>{ const result = {};\n" + script +
                       "\ndocument.body.dataset.answer = encodeURIComponent(JSON.stringify(result)); }</script>\n");
  // No sandbox: tests run in containers and as root, and the page is our own.
  const std::string dom = output_of(
      fmt::format("'{}' --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size=1280,1000 "
                  "--force-device-scale-factor=1 --user-data-dir='{}' --dump-dom 'file://{}' 2>/dev/null",
                  browser, profile.string(), copy.string()));
  const std::size_t start = dom.find(answer_start);
  EXPECT_NE(start, std::string::npos) << "the page gave no answer: " << dom.substr(0, 400);
  if (start == std::string::npos) return nlohmann::json::object();
  const std::size_t begin = start + answer_start.size();
  return nlohmann::json::parse(decoded(dom.substr(begin, dom.find('"', begin) - begin)));
}

}  // namespace glimpse::cli
