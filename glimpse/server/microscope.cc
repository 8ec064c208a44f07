#include "glimpse/server/microscope.h"

#include <string>

namespace glimpse::server {

/// Made by cmake/embed_file.cmake.
extern const std::string_view kMicroscopePage, kMicroscopeStyle, kMicroscopeScript;

namespace {

// 'self' alone, and no markup that a script makes of a text: the page has no use for it.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri "
    "'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

}  // namespace

HttpAnswer microscope_file(std::string_view path) {
  HttpAnswer answer;
  const bool style = path == "/microscope.css", script = path == "/microscope.js";
  answer.type = style    ? "text/css; charset=utf-8"
                : script ? "text/javascript; charset=utf-8"
                         : "text/html; charset=utf-8";
  answer.body = style ? kMicroscopeStyle : script ? kMicroscopeScript : kMicroscopePage;
  answer.fields = {{"Content-Security-Policy", std::string(kPolicy)},
                   {"Referrer-Policy", "no-referrer"},
                   {"Cross-Origin-Opener-Policy", "same-origin"},
                   {"Cache-Control", "no-cache"}};
  return answer;
}

}  // namespace glimpse::server
