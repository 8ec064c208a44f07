// What an answer must look like: a grammar (GBNF), and where in it an answer is. The grammar is shared and keeps what
// it finds out about its places, so that most tokens of a vocabulary are looked at once for each; any thread may use
// it. A place is a value: a copy of it is a mark, and assigning that restores it. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/text/token_texts.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::text {

class GrammarPlaces;

class Grammar {
 public:
  /// Throws UserError for what is no grammar (grammar_rules.h). `shown`: control tokens, with the texts by which the
  /// grammar may take them; no other control token is ever text.
  Grammar(std::string_view gbnf, std::shared_ptr<const TokenTexts> texts,
          std::vector<std::pair<Token, std::string>> shown = {});
  ~Grammar();

 private:
  friend class GrammarState;
  std::unique_ptr<GrammarPlaces> places_;
};

/// A grammar that a request asks for.
struct GrammarWish {
  std::shared_ptr<const Grammar> grammar;  ///< null: none
  std::string said;                        ///< what of its text the prompt ends with
  /// The answer is free until one of these stands in it; from there on it obeys. None: from its first token on.
  std::vector<std::string> triggers;
};

/// Each call may throw UserError: the grammar has more open possibilities than are followed, or takes too many steps.
class GrammarState {
 public:
  /// Throws UserError where the grammar does not take `said`.
  explicit GrammarState(const GrammarWish& wish);

  /// False: every token may follow.
  bool binds() const { return phase_ == Phase::bound; }
  /// Where it binds: the tokens of text that may follow. Tokens that end the text are none of them.
  std::shared_ptr<const TokenSet> allowed() const;
  bool allows(Token token) const;
  /// Whether the text may end here.
  bool may_end() const;
  /// The text must end here: nothing may follow.
  bool must_end() const;
  /// Takes in a token of text that is allowed. Text behind a trigger that breaks the grammar frees the answer.
  void accept(Token token);

 private:
  enum class Phase : std::uint8_t { waiting, bound, free };
  struct Place;
  friend class GrammarPlaces;

  Phase phase_ = Phase::bound;
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const Place> place_;
  std::vector<std::string> triggers_;
  std::string tail_;  ///< while waiting: what may be the beginning of a trigger
};

}  // namespace glimpse::text
