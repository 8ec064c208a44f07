// A headless Chromium that is driven through its DevTools pipe, for pages that a server gives out: what is evaluated in
// them is outside their content policy. One thread.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace glimpse::server {

class Browser {
 public:
  /// Starts it and opens the page. Throws where it says nothing.
  Browser(const std::string& program, const std::string& address);
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  /// What the expression comes to, a promise awaited. Throws with the page's words where it throws.
  nlohmann::json evaluate(const std::string& expression);
  /// A DevTools call on the page.
  nlohmann::json call(const std::string& method, const nlohmann::json& values = nlohmann::json::object());
  /// Errors that the page reported: exceptions, and what its content policy refused.
  const std::vector<std::string>& complaints() const { return complaints_; }

 private:
  nlohmann::json message();
  pid_t process_ = -1;
  int to_ = -1, from_ = -1;
  int next_ = 0;
  std::string session_, buffer_, profile_;
  std::vector<std::string> complaints_;
};

}  // namespace glimpse::server
