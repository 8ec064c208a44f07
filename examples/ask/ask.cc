// Asks a question about a document twice over one prefill: with dense attention, then with a sparse policy and its
// budget of tokens.
//
// Usage: ask MODEL.gguf DOCUMENT.txt QUESTION [POLICY [BUDGET]]
#include <glimpse/base/error.h>
#include <glimpse/base/log.h>
#include <glimpse/engine/engine.h>
#include <glimpse/policies/policy.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace {

using glimpse::engine::Engine;
using glimpse::engine::Sequence;
using glimpse::text::Token;

constexpr int kMostTokens = 48;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw glimpse::UserError("cannot read '" + path + "'; give a text file");
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The document and the question as the model's chat template shows them; plain text where the model has no template.
std::vector<Token> prompt_tokens(const Engine& engine, const std::string& document, const std::string& question) {
  const std::string text = document + "\n\n" + question;
  const glimpse::text::Tokenizer& tokenizer = engine.tokenizer();
  if (!tokenizer.has_chat_template()) return tokenizer.encode(text, glimpse::text::Special::as_text, true);
  const std::vector<glimpse::text::ChatMessage> messages{{"user", text}};
  return tokenizer.apply_chat(messages, true);
}

/// Continues the sequence greedily and prints the text, then what attention read for it.
void answer(const Engine& engine, Sequence& sequence, Token next, const std::string& name) {
  std::cout << name << ": ";
  for (int i = 0; i < kMostTokens && !engine.tokenizer().ends_generation(next); ++i) {
    std::cout << engine.tokenizer().piece(next) << std::flush;
    const std::span<const float> logits = sequence.decode(next);
    next = static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  const glimpse::engine::AttentionStats& stats = sequence.stats();
  std::printf("\n  read %.1f %% of the bytes that dense attention reads, %.1f MB in %lld steps\n",
              100 * stats.kept_ratio(), static_cast<double>(stats.bytes_read) / 1e6,
              static_cast<long long>(stats.dense_steps + stats.sparse_steps));
}

void run(const std::vector<std::string>& arguments) {
  glimpse::engine::EngineOptions options;
  options.model = arguments[0];
  options.sequences = 2;  // the prefilled one and its fork
  Engine engine(options);

  // A plan says what each head reads. The policies make plans from the model's shape.
  const std::string policy = arguments.size() > 3 ? arguments[3] : "tidal";
  glimpse::policies::PolicyOptions sparse;
  sparse.budget = glimpse::plan::parse_budget(arguments.size() > 4 ? arguments[4] : "256");
  const auto dense_plan = glimpse::policies::make_plan("full", engine.shape(), {});
  const auto sparse_plan = glimpse::policies::make_plan(policy, engine.shape(), sparse);

  Sequence dense = engine.open(dense_plan);
  const std::vector<Token> prompt = prompt_tokens(engine, read_file(arguments[1]), arguments[2]);
  const std::span<const float> logits = dense.prefill(prompt);
  const auto first = static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::cout << prompt.size() << " tokens in the prompt\n";

  Sequence fork = dense.fork(sparse_plan);  // shares the cache of the prompt
  answer(engine, dense, first, "full");
  answer(engine, fork, first, policy);
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  if (arguments.size() < 3 || arguments.size() > 5) {
    std::cerr << "usage: ask MODEL.gguf DOCUMENT.txt QUESTION [POLICY [BUDGET]]\n";
    return 2;
  }
  glimpse::log_to_stderr(glimpse::LogLevel::warning);
  try {
    run(arguments);
  } catch (const glimpse::UserError& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 2;
  }
}
