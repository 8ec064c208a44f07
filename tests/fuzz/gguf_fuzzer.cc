// The loader on any bytes: a model loads or ends in UserError; anything else is a finding. The corpus starts from the
// good files that gguf_seeds writes.
#include <cstddef>
#include <cstdint>
#include <span>

#include "glimpse/base/error.h"
#include "glimpse/model/model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const glimpse::model::Model model(
        glimpse::model::GgufFile(std::as_bytes(std::span<const std::uint8_t>(data, size)), "fuzzed"));
  } catch (const glimpse::UserError&) {
  }
  return 0;
}
