#include "glimpse/text/pre_tokenizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"

namespace glimpse::text {
namespace {

/// Kinds of ASCII characters. Others count as every kind but the space, so that no table of Unicode is needed: a run
/// is never longer than what is counted for it.
enum Kind : unsigned { kLetter = 1, kDigit = 2, kMark = 4, kSpace = 8, kBlank = 16 };

constexpr std::array<std::uint8_t, 256> make_kinds() {
  std::array<std::uint8_t, 256> kinds{};
  for (unsigned c = 0; c < 256; ++c) {
    if (c >= 128) {
      kinds[c] = kLetter | kDigit | kMark | kBlank;
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      kinds[c] = kLetter;
    } else if (c >= '0' && c <= '9') {
      kinds[c] = kDigit;
    } else if (c == ' ') {
      kinds[c] = kSpace;
    } else if (c >= '\t' && c <= '\r') {
      kinds[c] = kBlank;
    } else {
      kinds[c] = kMark;
    }
  }
  return kinds;
}
constexpr std::array<std::uint8_t, 256> kKinds = make_kinds();

struct Run {
  unsigned kinds;
  std::string_view name;
};
constexpr Run kLetters{kLetter, "letters"};
constexpr Run kDigits{kDigit, "digits"};
constexpr Run kMarks{kMark, "punctuation marks"};
constexpr Run kSpaces{kSpace | kBlank, "white space characters"};
constexpr Run kPhrase{kLetter | kSpace | kBlank, "letters and spaces"};
constexpr Run kVisible{kLetter | kDigit | kMark, "characters without white space"};

/// Runs that cost time in the square of their length.
struct Square {
  std::size_t (*at)(std::string_view text);  ///< bytes of the character at the head of a text; 0: not of the run
  std::string_view name;
  double squares;  ///< how many take a second
};

std::size_t digit_at(std::string_view text) {
  return text[0] >= '0' && text[0] <= '9' ? 1 : 0;
}

/// White space as libllama knows it.
std::size_t space_at(std::string_view text) {
  if (text[0] == ' ' || (text[0] >= '\t' && text[0] <= '\r')) return 1;
  for (const std::string_view space : {"\u0085", "\u00a0"}) {
    if (text.starts_with(space)) return 2;
  }
  if (text.starts_with("\xE2\x80") && text.size() > 2) {
    const auto last = static_cast<unsigned char>(text[2]);
    if (last <= 0x8A || last == 0xA8 || last == 0xA9 || last == 0xAF) return 3;
  }
  for (const std::string_view space : {"\u1680", "\u205f", "\u3000"}) {
    if (text.starts_with(space)) return 3;
  }
  return 0;
}

struct Family {
  std::vector<Run> runs;        ///< of which std::regex matches any length at once, by recursion
  std::vector<Square> squares;  ///< of which it tries every part
  std::size_t stretches;        ///< see most_stretches
};

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

// What the expressions of src/llama-vocab.cpp match, and how long they take to compile (20 us to 2 ms).
const Family kByHand{{}, {}, kUnlimited};  // libllama splits without std::regex
const Family kOneDigit{{}, {}, 30000};     // its only expression matches one character
const Family kDefault{{kDigits, kMarks}, {}, 30000};
const Family kFalcon{{kMarks}, {}, 30000};
const Family kChameleon{{kDigits}, {}, 15000};
const Family kBloom{{kVisible}, {}, 10000};
const Family kCoder{{kLetters, kMarks}, {}, 10000};
const Family kWords{{kLetters, kMarks, kSpaces}, {}, 500};
const Family kPhrases{{kPhrase, kMarks, kSpaces}, {}, 500};
const Family kJais2{{kLetters, kMarks, kSpaces}, {{space_at, kSpaces.name, 2e9}}, 500};
const Family kDeepSeek{{kLetters, kDigits, kMarks, kSpaces}, {{space_at, kSpaces.name, 8e6}}, 10000};
const Family kSuper{{kDigits}, {{digit_at, kDigits.name, 8e6}}, 30000};

}  // namespace

struct PreTokenizer {
  std::string_view name;
  const Family* family;
};

namespace {

constexpr PreTokenizer kPreTokenizers[] = {
    {"a.x-4.0", &kByHand},
    {"afmoe", &kWords},
    {"bailingmoe", &kWords},
    {"bailingmoe2", &kWords},
    {"bloom", &kBloom},
    {"chameleon", &kChameleon},
    {"chatglm-bpe", &kByHand},
    {"codeshell", &kOneDigit},
    {"cohere2moe", &kWords},
    {"command-r", &kOneDigit},
    {"dbrx", &kByHand},
    {"deepseek-coder", &kCoder},
    {"deepseek-llm", &kDeepSeek},
    {"deepseek-r1-qwen", &kByHand},
    {"deepseek-v3", &kWords},
    {"default", &kDefault},
    {"exaone", &kOneDigit},
    {"exaone-moe", &kPhrases},
    {"exaone4", &kByHand},
    {"f2llmv2", &kByHand},
    {"falcon", &kFalcon},
    {"falcon-h1", &kByHand},
    {"falcon3", &kByHand},
    {"gigachat", &kByHand},
    {"glm4", &kByHand},
    {"glm5", &kByHand},
    {"gpt-2", &kByHand},
    {"gpt-4o", &kWords},
    {"gpt3-finnish", &kBloom},
    {"granite-docling", &kByHand},
    {"granite-embed-multi-97m", &kWords},
    {"grok-2", &kByHand},
    {"hunyuan", &kByHand},
    {"hunyuan-dense", &kWords},
    {"hy_v4", &kWords},
    {"jais", &kByHand},
    {"jais-2", &kJais2},
    {"jina-de", &kByHand},
    {"jina-es", &kByHand},
    {"jina-v1-en", &kByHand},
    {"jina-v2-code", &kByHand},
    {"jina-v2-de", &kByHand},
    {"jina-v2-es", &kByHand},
    {"jina-v5-nano", &kByHand},
    {"joyai-llm", &kWords},
    {"kanana2", &kWords},
    {"kimi-k2", &kByHand},
    {"kormo", &kByHand},
    {"laguna", &kByHand},
    {"lfm2", &kByHand},
    {"llada-moe", &kWords},
    {"llama-bpe", &kByHand},
    {"llama-v3", &kByHand},
    {"llama3", &kByHand},
    {"llama4", &kWords},
    {"megrez", &kByHand},
    {"mellum", &kByHand},
    {"mellum2", &kOneDigit},
    {"midm-2.0", &kByHand},
    {"minerva-7b", &kOneDigit},
    {"minicpm5", &kWords},
    {"minimax-m2", &kWords},
    {"modern-bert", &kByHand},
    {"mpt", &kByHand},
    {"olmo", &kByHand},
    {"phi-2", &kByHand},
    {"pixtral", &kByHand},
    {"poro-chat", &kBloom},
    {"qwen2", &kByHand},
    {"qwen35", &kByHand},
    {"refact", &kOneDigit},
    {"roberta-bpe", &kByHand},
    {"seed-coder", &kWords},
    {"smaug-bpe", &kByHand},
    {"smollm", &kOneDigit},
    {"solar-open", &kByHand},
    {"spark2_5", &kWords},
    {"stablelm2", &kByHand},
    {"starcoder", &kOneDigit},
    {"superbpe", &kSuper},
    {"talkie", &kWords},
    {"tekken", &kWords},
    {"tiny_aya", &kWords},
    {"trillion", &kByHand},
    {"ufakzeka", &kWords},
    {"viking", &kBloom},
    {"youtu", &kWords},
};

/// At 544 bytes of stack a character, what the hungriest expression takes, this touches 220 MB.
constexpr std::size_t kLongestRun = 400000;
/// Shorter runs fit on any thread's stack.
constexpr std::size_t kShortRun = 256;
/// Of address space: a match may hold two runs, and builds under a sanitizer take more.
constexpr std::size_t kStackPerCharacter = 4096;
constexpr std::size_t kStackBeside = std::size_t{1} << 20;
/// Squares that pay at any length of text are as many as runs of 16 make.
constexpr double kShortSquare = 16.0;

bool starts_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

/// Calls `each(begin, characters)` for every run of `kinds`.
template <class F>
void for_runs(std::string_view text, unsigned kinds, F each) {
  std::size_t begin = 0, characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((kKinds[static_cast<unsigned char>(text[i])] & kinds) == 0) {
      if (characters > 0) each(begin, characters);
      characters = 0;
      continue;
    }
    if (characters == 0) begin = i;
    characters += starts_character(text[i]) ? 1 : 0;
  }
  if (characters > 0) each(begin, characters);
}

}  // namespace

std::vector<std::string_view> pre_tokenizer_names() {
  std::vector<std::string_view> names;
  for (const PreTokenizer& pre : kPreTokenizers) names.push_back(pre.name);
  return names;
}

const PreTokenizer& find_pre_tokenizer(std::string_view name) {
  for (const PreTokenizer& pre : kPreTokenizers) {
    if (pre.name == name) return pre;
  }
  throw UserError("the model's tokenizer cannot be used: " +
                  unknown_name("pre-tokenizer", name, pre_tokenizer_names()));
}

std::size_t stack_for(const PreTokenizer& pre, std::string_view text) {
  std::size_t longest = 0;
  for (const Run& run : pre.family->runs) {
    for_runs(text, run.kinds, [&](std::size_t begin, std::size_t characters) {
      longest = std::max(longest, characters);
      if (characters <= kLongestRun) return;
      throw UserError(fmt::format(
          "the text has {} {} in a row from byte {} on; the model's pre-tokenizer '{}' takes at most {}; break the run",
          characters, run.name, begin, pre.name, kLongestRun));
    });
  }
  for (const Square& square : pre.family->squares) {
    const double limit = std::max(square.squares, kShortSquare * static_cast<double>(text.size()));
    double sum = 0.0;
    for (std::size_t i = 0; i < text.size();) {
      std::size_t characters = 0;
      const std::size_t begin = i;
      while (i < text.size()) {
        const std::size_t bytes = square.at(text.substr(i));
        if (bytes == 0) break;
        i += bytes;
        ++characters;
      }
      sum += static_cast<double>(characters) * static_cast<double>(characters);
      if (sum > limit) {
        throw UserError(
            fmt::format("the text has long runs of {}, the last of {} from byte {} on; the model's pre-tokenizer '{}' "
                        "takes at most "
                        "{:.0f} as the sum of their lengths' squares; shorten them",
                        square.name, characters, begin, pre.name, limit));
      }
      if (characters == 0) ++i;
    }
  }
  return longest <= kShortRun ? 0 : kStackBeside + longest * kStackPerCharacter;
}

std::size_t most_stretches(const PreTokenizer& pre) {
  return pre.family->stretches;
}

}  // namespace glimpse::text
