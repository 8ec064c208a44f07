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

/// What a grammar may cost, in steps of some 40 ns: refused beyond. The thread that makes the steps has all streams, so
/// these bound what others wait for one. A request has a grammar of its own, so the sum is of all its answers.
struct GrammarWork {
  /// Of one call: the tokens that may follow, or one that is taken.
  std::size_t at_once = std::size_t{1} << 20;
  /// Of all calls: so many, and for each token that was taken `each` and two looks at the whole vocabulary. A schema's
  /// grammar that has a place for each letter takes a third of that.
  std::size_t in_all = std::size_t{1} << 24, each = std::size_t{1} << 16;
};

class Grammar {
 public:
  /// Throws UserError for what is no grammar (grammar_rules.h). `shown`: control tokens, with the texts by which the
  /// grammar may take them; no other control token is ever text.
  Grammar(std::string_view gbnf, std::shared_ptr<const TokenTexts> texts,
          std::vector<std::pair<Token, std::string>> shown = {}, const GrammarWork& work = {});
  ~Grammar();

 private:
  friend class GrammarFollower;
  std::unique_ptr<GrammarPlaces> places_;
};

/// A grammar that a request asks for.
struct GrammarWish {
  std::shared_ptr<const Grammar> grammar;  ///< null: none
  std::string said;                        ///< what of its text the prompt ends with
  /// The answer is free until one of these stands in it; from there on it obeys. None: from its first token on.
  std::vector<std::string> triggers;
  /// Instead of triggers: what the answer may call, where a call's form has no text of its own to begin with. The
  /// answer is free until it reads, from its beginning or its first '{' on, as the grammar's texts do up to one of
  /// these names and a byte behind it; from there on it obeys.
  std::vector<std::string> names{};
};

/// Each call may throw RequestError: the grammar has more open possibilities than are followed, or takes more work than
/// GrammarWork says.
class GrammarFollower {
 public:
  /// Throws UserError where the grammar does not take `said`.
  explicit GrammarFollower(const GrammarWish& wish);

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
  enum class Phase : std::uint8_t { waiting, following, bound, free };
  struct Place;
  friend class GrammarPlaces;

  /// Obeys from there on; null: is free.
  void bind(std::shared_ptr<const Place> to);
  /// Leaves in tail_ what begins with a trigger, or may become one.
  bool found_trigger();
  void follow();
  /// Whether tail_ has a name where the grammar takes names alone, and something behind it.
  bool has_name() const;

  Phase phase_ = Phase::bound;
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const Place> place_;
  std::vector<std::string> triggers_, names_;
  std::string tail_;  ///< while waiting: what may be the beginning of a trigger; while following: what was followed
};

}  // namespace glimpse::text
