// Traces of any bytes: each is a trace that fits together and that `inspect --html` can draw, or ends in UserError;
// anything else is a finding. The corpus starts from what trace_seeds writes.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "glimpse/base/error.h"
#include "glimpse/cli/picture.h"
#include "glimpse/cli/trace.h"

namespace {

using namespace glimpse;
using namespace glimpse::cli;

void require(bool ok) {
  if (!ok) std::abort();
}

void check_step(const Trace& trace, const TraceStep& step) {
  require(step.heads.size() ==
          static_cast<std::size_t>(trace.shape.layers) * static_cast<std::size_t>(trace.shape.kv_heads));
  require(step.position >= trace.prompt_tokens && step.position < static_cast<std::int64_t>(trace.tokens.size()));
  for (const TraceHead& head : step.heads) {
    require(head.tokens >= 0 && head.tokens <= step.position + 1);
    require(head.list >= TraceHead::kAll && head.list < static_cast<std::int32_t>(trace.lists.size()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int file = ::memfd_create("trace", MFD_CLOEXEC);
  require(file >= 0 && ::write(file, data, size) == static_cast<ssize_t>(size));
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  try {
    looks_like_trace(path);
    const Trace trace = read_trace(path);
    for (const TraceStep& step : trace.steps) check_step(trace, step);
    require(!picture_page(trace).empty());
  } catch (const UserError&) {
  }
  ::close(file);
  return 0;
}
