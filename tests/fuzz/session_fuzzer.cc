// Session files of any bytes, as they come and once more with checksums that fit: each is a sequence whose indices can
// be searched, or ends in UserError; anything else is a finding. The corpus starts from what session_seeds writes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/base/error.h"
#include "tests/fuzz/session_model.h"
#include "tests/support/reseal_session.h"

namespace {

using namespace glimpse;
using namespace glimpse::engine;

void search(const kv::Cache& cache, kv::SequenceId sequence, const SavedSession& session,
            attention::SequenceState& state) {
  const plan::ModelShape& shape = session.plan.shape;
  const std::int64_t tokens = cache.length(sequence);
  const std::vector<float> queries(static_cast<std::size_t>(shape.group() * shape.head_dim), 0.5F);
  kv::IndexScratch scratch;
  std::vector<std::int32_t> set;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      kv::KeyIndex* index = state.indices[state.head(layer, head)].get();
      if (index == nullptr) continue;
      const kernels::HeadView view = cache.view(sequence, layer, head);
      index->extend({&view, cache.shape().format, {}, state.prompt_tokens}, tokens);
      index->search({queries.data(), shape.group(), 0.25F, tokens, 48}, scratch, set);
      for (std::size_t i = 0; i < set.size(); ++i) {
        if (set[i] < 0 || set[i] >= tokens || (i > 0 && set[i] <= set[i - 1])) std::abort();
      }
      if (set.empty() || set.back() != tokens - 1) std::abort();
    }
  }
}

void read(std::span<const std::byte> bytes) {
  try {
    const SessionModel model = fuzzed_model();
    const SessionReader reader(bytes, "fuzzed");
    const SavedSession session = read_session(reader, model);
    attention::require_supported(session.plan);
    for (const plan::Selector& selector :
         session.plan.selectors) {  // an engine loads gates, and refuses what it cannot
      if (!selector.terms.empty() && !selector.terms.front().index.gates.empty()) return;
    }
    attention::SequenceState state(session.plan);
    read_state(reader, session, state);
    kv::Cache cache({model.shape.layers, model.shape.kv_heads, model.format, kFuzzedTokens});
    const kv::SequenceId sequence = read_rows(reader, session, session.length(), cache);
    if (session.whole() && session.length() > 1) cache.destroy(read_rows(reader, session, session.length() / 2, cache));
    search(cache, sequence, session, state);
  } catch (const UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span<const std::uint8_t>(data, size));
  read(bytes);
  std::vector<std::byte> sealed(bytes.begin(), bytes.end());
  reseal_session(sealed);
  read(sealed);
  return 0;
}
