// Texts of runs and raw bytes for every pre-tokenizer, and for SentencePiece: each comes back as it was or ends in
// UserError, within two seconds of processor time (ten under AddressSanitizer, whose build takes ten times as long);
// short ones get libllama's ids. Anything else is a finding. The corpus starts from what text_seeds writes.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "../text/support.h"
#include "glimpse/base/error.h"
#include "glimpse/base/sanitizers.h"
#include "glimpse/text/pre_tokenizers.h"
#include "glimpse/text/tokenizer.h"
#include "glimpse/text/utf8.h"
#include "text_input.h"

namespace {

using namespace glimpse;
using namespace glimpse::text;
using namespace glimpse::text::testing;

constexpr double kMostSeconds = kAddressSanitizer ? 10.0 : 2.0;
/// What libllama alone survives, on any thread and in the time.
constexpr std::size_t kShort = 2000;

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

/// By index: a pre-tokenizer's name, last SentencePiece.
Pair& pair_of(std::size_t index) {
  static const std::vector<std::string_view> names = pre_tokenizer_names();
  static std::vector<std::unique_ptr<Pair>> pairs(names.size() + 1);
  index %= pairs.size();
  if (!pairs[index]) {
    const bool sentencepiece = index == names.size();
    const GgufPointer context = sentencepiece ? small_sentencepiece() : small_bpe();
    if (!sentencepiece) gguf_set_val_str(context.get(), "tokenizer.ggml.pre", std::string(names[index]).c_str());
    const TemporaryFile file(context.get(), "fuzz");
    pairs[index] = std::make_unique<Pair>(file.path());
  }
  return *pairs[index];
}

}  // namespace

/// AddressSanitizer keeps 256 MB of freed blocks before it uses one again, and gives free memory back every five
/// seconds. Texts are many small blocks, so that free ones fill memory. With 16 MB kept, which is enough to see a use
/// of one, 880 texts take 627 MB, and 444 where free memory is given back ten times a second.
extern "C" const char* __asan_default_options() {
  return "quarantine_size_mb=16:allocator_release_to_os_interval_ms=100";
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return -1;
  const Pair& pair = pair_of(data[0]);
  const std::string text = fuzz::described_text({data + 1, size - 1});
  const std::clock_t start = std::clock();
  std::vector<Token> ids;
  bool refused = false;
  try {
    ids = pair.ours.encode(text, Special::as_text, false);
    // SentencePiece's vocabulary spells a space and U+2581 alike.
    if (text.find("\u2581") == std::string::npos) require(pair.ours.decode(ids) == text, "the text did not come back");
  } catch (const UserError&) {
    refused = true;
  }
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  require(seconds < kMostSeconds, "too slow");
  require(refused || !find_invalid_utf8(text), "invalid UTF-8 was taken");
  if (refused || text.size() > kShort) return 0;
  require(ids == pair.reference.tokenize(text, false, false), "libllama has other ids");
  require(pair.ours.encode(text, Special::as_tokens, false) == pair.reference.tokenize(text, false, true),
          "libllama has other ids with control tokens");
  return 0;
}
