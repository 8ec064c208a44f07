#include "tests/server/devtools.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace glimpse::server {
namespace {

using Json = nlohmann::json;

constexpr int kPatience = 120'000;      // milliseconds; a hanging browser fails the test instead of stopping it
constexpr int kReads = 3, kWrites = 4;  // descriptors that Chromium's pipe has

/// In the child: what is left of it is the browser.
void become(const std::string& program, const std::string& profile, int reads, int writes) {
  // Out of the way first: they may be 3 or 4 themselves.
  const int in = ::fcntl(reads, F_DUPFD, 10), out = ::fcntl(writes, F_DUPFD, 10);
  ::dup2(in, kReads);
  ::dup2(out, kWrites);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (const int descriptor : {0, 1, 2}) ::dup2(nothing, descriptor);
  // No sandbox: tests run in containers and as root, and the page is our own.
  ::execl(program.c_str(), program.c_str(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
          "--window-size=1280,1000", "--force-device-scale-factor=1", "--remote-debugging-pipe", "--no-first-run",
          ("--user-data-dir=" + profile).c_str(), "about:blank", static_cast<char*>(nullptr));
  ::_exit(127);
}

}  // namespace

Browser::Browser(const std::string& program, const std::string& address) {
  std::string folder = (std::filesystem::temp_directory_path() / "glimpse-browser-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no folder for the browser");
  profile_ = folder;
  int there[2], back[2];
  if (::pipe2(there, O_CLOEXEC) != 0 || ::pipe2(back, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  process_ = ::fork();
  if (process_ == 0) become(program, profile_, there[0], back[1]);
  ::close(there[0]);
  ::close(back[1]);
  to_ = there[1];
  from_ = back[0];
  const Json target = call("Target.createTarget", {{"url", "about:blank"}});
  const Json attached = call("Target.attachToTarget", {{"targetId", target["targetId"]}, {"flatten", true}});
  session_ = attached["sessionId"];
  call("Runtime.enable");
  call("Log.enable");
  call("Page.enable");
  call("Page.navigate", {{"url", address}});
  evaluate(
      "new Promise((done) => { const look = () => document.body && document.body.dataset.ready ? done(1) : "
      "setTimeout(look, 5); look(); })");
}

Browser::~Browser() {
  if (to_ >= 0) ::close(to_);
  if (from_ >= 0) ::close(from_);
  if (process_ > 0) {
    ::kill(process_, SIGTERM);
    ::waitpid(process_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(profile_, ignored);
}

Json Browser::message() {
  std::size_t end = 0;
  while ((end = buffer_.find('\0')) == std::string::npos) {
    pollfd wait{from_, POLLIN, 0};
    if (::poll(&wait, 1, kPatience) <= 0) throw std::runtime_error("the browser says nothing");
    char bytes[65536];
    const ssize_t count = ::read(from_, bytes, sizeof bytes);
    if (count <= 0) throw std::runtime_error("the browser has ended");
    buffer_.append(bytes, static_cast<std::size_t>(count));
  }
  Json json = Json::parse(buffer_.substr(0, end));
  buffer_.erase(0, end + 1);
  return json;
}

Json Browser::call(const std::string& method, const Json& values) {
  Json request{{"id", ++next_}, {"method", method}, {"params", values}};
  if (!session_.empty()) request["sessionId"] = session_;
  const std::string text = request.dump() + '\0';
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = ::write(to_, text.data() + sent, text.size() - sent);
    if (count <= 0) throw std::runtime_error("the browser has ended");
    sent += static_cast<std::size_t>(count);
  }
  for (;;) {
    const Json json = message();
    if (json.value("method", "") == "Runtime.exceptionThrown") complaints_.push_back(json["params"].dump());
    if (json.value("method", "") == "Log.entryAdded" && json["params"]["entry"]["level"] == "error" &&
        json["params"]["entry"]["source"] != "network") {
      complaints_.push_back(json["params"]["entry"].dump());
    }
    if (json.value("id", -1) != next_) continue;
    if (json.contains("error")) throw std::runtime_error(method + ": " + json["error"].dump());
    return json["result"];
  }
}

Json Browser::evaluate(const std::string& expression) {
  const Json result =
      call("Runtime.evaluate", {{"expression", expression}, {"awaitPromise", true}, {"returnByValue", true}});
  if (result.contains("exceptionDetails")) throw std::runtime_error(result["exceptionDetails"].dump());
  return result["result"].value("value", Json());
}

}  // namespace glimpse::server
