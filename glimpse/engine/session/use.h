// What a saved session gave to a request, and took from it. A value; any thread. docs/sessions.md has the rule.
#pragma once

#include <cstdint>
#include <string>

namespace glimpse::engine {

struct SessionUse {
  std::int64_t file_tokens = 0;    ///< in the file that was there; 0: there was none
  std::int64_t common_tokens = 0;  ///< that the prompt begins with
  std::int64_t loaded_tokens = 0;  ///< re-used; the rest of the prompt was prefilled
  std::string why_less;            ///< why fewer than the common ones; empty where none is to be told
  double load_s = 0, load_cpu_s = 0;
  std::int64_t saved_tokens = 0;  ///< written after the prefill, or the part that was done; 0: not written
  std::int64_t saved_bytes = 0;
  double save_s = 0;
  std::string save_error;  ///< the file is as it was before
  std::string read_only;   ///< why a grown prompt was not written: the folder of a file that was there; else empty
};

}  // namespace glimpse::engine
