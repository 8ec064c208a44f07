#include "glimpse/text/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/base/request_error.h"
#include "glimpse/text/grammar_rules.h"

namespace glimpse::text {
namespace {

using Kind = GrammarElement::Kind;

// Work is counted, not timed: the same request does the same everywhere. A step is what adds one possibility to a
// place, or looks at one again: 40 to 80 ns. The thread that makes the steps has all streams, and each waits for it.
constexpr std::size_t kStepsOfPlace = 16;       ///< what making room for a place costs
constexpr std::size_t kNodesOfStep = 8;         ///< of the tree of a vocabulary's texts: so many cost what a step does
constexpr std::size_t kMostOpen = 1u << 14;     ///< possibilities at one place
constexpr std::size_t kMostReturns = 1u << 20;  ///< returns that were ever pushed
constexpr std::size_t kKeptPlaces = 1u << 12;   ///< 1 KiB each
constexpr std::size_t kKeptOpen = 1u << 21;     ///< possibilities of all kept places: 16 bytes each
constexpr std::size_t kMostPlaces = 1u << 15;   ///< within one call
constexpr std::size_t kKeptSets = 256;          ///< sets of tokens
constexpr std::uint32_t kBottom = 0;            ///< the return behind which the grammar ends
constexpr std::int32_t kUnknown = -1, kNowhere = -2;
constexpr std::size_t kWordBits = 64;
constexpr char kBrace = '{';
constexpr std::string_view kNoName = "\xef\xbf\xbd";  ///< a character that is in no name
constexpr std::size_t kLongestOpening = 512;          ///< bytes of a call up to its name

[[noreturn]] void refuse(std::string_view what) {
  throw RequestError(fmt::format("the grammar is too ambiguous or too deep here ({}); simplify it", what));
}

/// The rest of a character whose first bytes came.
struct Partial {
  std::uint32_t value = 0;
  std::uint8_t left = 0, length = 0;  ///< bytes
  bool operator==(const Partial&) const = default;
};

/// What may still become of it: no overlong form, no surrogate. False where nothing.
bool range_of(const Partial& partial, std::uint32_t& low, std::uint32_t& high) {
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  low = std::max(partial.value << (6 * partial.left), kLeast[partial.length]);
  high = std::min(((partial.value + 1) << (6 * partial.left)) - 1, std::uint32_t{0x10ffff});
  if (low >= 0xd800 && low <= 0xdfff) low = 0xe000;
  if (high >= 0xd800 && high <= 0xdfff) high = 0xd7ff;
  return low <= high;
}

/// Takes in the next byte; false where it is none of UTF-8.
bool takes(Partial& partial, std::uint8_t byte) {
  if (partial.left > 0) {
    if ((byte & 0xc0) != 0x80) return false;
    partial.value = partial.value << 6 | (byte & 0x3f);
    --partial.left;
  } else if (byte < 0x80) {
    partial = {byte, 0, 1};
  } else if (byte >= 0xc2 && byte < 0xe0) {
    partial = {byte & 0x1fu, 1, 2};
  } else if (byte >= 0xe0 && byte < 0xf0) {
    partial = {byte & 0x0fu, 2, 3};
  } else if (byte >= 0xf0 && byte < 0xf5) {
    partial = {byte & 0x07u, 3, 4};
  } else {
    return false;
  }
  return true;
}

/// The element that must match next, and where the grammar goes on behind its rule.
struct Open {
  std::uint32_t at = 0, back = 0;
  auto operator<=>(const Open&) const = default;  // NOLINT(modernize-use-nullptr): of what the compiler makes
};

}  // namespace

struct GrammarFollower::Place {
  std::vector<Open> open;  ///< ascending
  bool ends = false;       ///< the text may end
  Partial partial;
  std::vector<std::uint32_t> sets;  ///< of `open`, each once, ascending
  bool nowhere() const { return open.empty() && !ends; }
};

/// A grammar's places and the steps between them, by bytes, as far as they were asked for.
class GrammarPlaces {
 public:
  using Place = GrammarFollower::Place;
  using PlacePointer = std::shared_ptr<const Place>;

  GrammarPlaces(std::string_view gbnf, std::shared_ptr<const TokenTexts> texts,
                std::vector<std::pair<Token, std::string>> shown, const GrammarWork& work)
      : rules_(read_grammar(gbnf)),
        texts_(std::move(texts)),
        shown_(std::move(shown)),
        work_(work),
        each_(work.each + 2 * texts_->nodes().size() / kNodesOfStep) {
    returns_.push_back({});  // kBottom
    start();
    Place place;
    for (const std::uint32_t at : rules_.alternatives[rules_.root]) expand({at, kBottom}, place);
    if (place.nowhere()) throw UserError("the grammar takes no text: each way through it goes in a circle; change it");
    first_ = places_[static_cast<std::size_t>(index_of(finished(std::move(place))))].place;
  }

  PlacePointer first() const { return first_; }

  /// Null: the text leads nowhere.
  PlacePointer behind(const PlacePointer& place, std::string_view text) {
    const std::scoped_lock lock(mutex_);
    return walked(place, text);
  }
  /// The same for a token's text that an answer goes on with.
  PlacePointer taken(const PlacePointer& place, std::string_view text) {
    const std::scoped_lock lock(mutex_);
    ++taken_;
    return walked(place, text);
  }

  bool allows(const PlacePointer& place, Token token) {
    const std::string_view text = text_of(token);
    if (text.empty()) return false;
    const std::scoped_lock lock(mutex_);
    start();
    return walk(index_of(place), text) != kNowhere;
  }

  std::shared_ptr<const TokenSet> allowed(const PlacePointer& place) {
    const std::scoped_lock lock(mutex_);
    start();
    const std::int32_t from = index_of(place);
    if (const auto& known = places_[static_cast<std::size_t>(from)].allowed) return known;
    auto made = std::make_shared<TokenSet>(texts_->size());
    const auto& nodes = texts_->nodes();
    std::vector<std::int32_t> path{from};  // [depth]
    std::size_t looked = 0;
    for (std::uint32_t i = 0; i < nodes.size();) {
      const TokenTexts::Node& node = nodes[i];
      if (++looked % kNodesOfStep == 0) step();
      const std::int32_t to = next(path[node.depth], node.byte);
      if (to == kNowhere) {
        i = node.skip;
        continue;
      }
      path.resize(node.depth + 1);
      path.push_back(to);
      for (std::uint32_t k = 0; k < node.tokens; ++k) made->add(texts_->tokens()[node.first_token + k]);
      ++i;
    }
    for (const auto& [token, text] : shown_) {
      if (walk(from, text) != kNowhere) made->add(token);
    }
    if (sets_++ >= kKeptSets) {
      for (Known& known : places_) known.allowed.reset();
      sets_ = 1;
    }
    places_[static_cast<std::size_t>(from)].allowed = made;
    return made;
  }

  std::string_view text_of(Token token) const {
    const auto found =
        std::find_if(shown_.begin(), shown_.end(), [token](const auto& each) { return each.first == token; });
    return found != shown_.end() ? std::string_view(found->second) : texts_->text(token);
  }

 private:
  struct Known {
    PlacePointer place;
    std::array<std::int32_t, 256> next;  ///< [byte] a place, or kUnknown, kNowhere
    std::shared_ptr<const TokenSet> allowed;
    std::vector<std::pair<std::uint64_t, std::int32_t>> behind;  ///< whole characters of these of place->sets
  };

  /// Before each call. Places that states hold stay theirs.
  void start() {
    steps_ = 0;
    if (places_.size() <= kKeptPlaces && open_ <= kKeptOpen) return;
    places_.clear();
    index_.clear();
    sets_ = open_ = 0;
  }

  void step(std::size_t count = 1) {
    steps_ += count;
    all_steps_ += count;
    if (steps_ > work_.at_once) refuse(fmt::format("it takes more than {} steps for one token", work_.at_once));
    if (all_steps_ <= work_.in_all + each_ * taken_) return;
    refuse(fmt::format("it takes more than {} steps, and {} for each of {} tokens", work_.in_all, each_, taken_));
  }

  std::int32_t index_of(const PlacePointer& place) {
    std::string key(place->open.size() * sizeof(Open) + sizeof(Partial) + 1, '\0');
    key[0] = place->ends ? 1 : 0;
    const Partial& partial = place->partial;
    const std::uint32_t packed[] = {partial.value, std::uint32_t{partial.left} << 8 | partial.length};
    std::memcpy(key.data() + 1, packed, sizeof packed);
    if (!place->open.empty()) {
      std::memcpy(key.data() + 1 + sizeof packed, place->open.data(), place->open.size() * sizeof(Open));
    }
    if (const auto found = index_.find(key); found != index_.end()) return found->second;
    // Before it is noted: others that share the grammar go on.
    if (places_.size() >= kMostPlaces) refuse("it has too many places");
    step(kStepsOfPlace);
    const auto index = static_cast<std::int32_t>(places_.size());
    places_.push_back({place, {}, nullptr, {}});
    places_.back().next.fill(kUnknown);
    open_ += place->open.size();
    index_.emplace(std::move(key), index);
    return index;
  }

  std::uint32_t return_to(std::uint32_t at, std::uint32_t back) {
    const std::uint64_t key = std::uint64_t{at} << 32 | back;
    if (const auto found = return_index_.find(key); found != return_index_.end()) return found->second;
    // Before it is noted: others that share the grammar go on.
    if (returns_.size() >= kMostReturns) refuse("it nests too deeply");
    const auto index = static_cast<std::uint32_t>(returns_.size());
    returns_.push_back({at, back});
    return_index_.emplace(key, index);
    return index;
  }

  /// Adds what may match from there.
  void expand(Open from, Place& place) {
    todo_.assign(1, from);
    if (seen_.bucket_count() > 4096) seen_ = {};  // clear() goes over all buckets
    seen_.clear();
    while (!todo_.empty()) {
      step();
      auto [at, back] = todo_.back();
      todo_.pop_back();
      const GrammarElement element = rules_.elements[at];
      if (element.kind == Kind::chars) {
        place.open.push_back({at, back});
        if (place.open.size() > 2 * kMostOpen) tidy(place);
      } else if (element.kind == Kind::rule) {
        // The last element of a rule leaves no return behind: repetitions stay flat.
        if (rules_.elements[at + 1].kind != Kind::end) back = return_to(at + 1, back);
        for (const std::uint32_t first : rules_.alternatives[element.value]) add({first, back});
      } else if (back == kBottom) {
        place.ends = true;
      } else {
        add(returns_[back]);
      }
    }
  }

  void add(Open next) {
    if (seen_.insert(std::uint64_t{next.at} << 32 | next.back).second) {
      todo_.push_back(next);
    } else {
      step();  // what is there already takes time, too
    }
  }

  static void tidy(Place& place) {
    std::sort(place.open.begin(), place.open.end());
    place.open.erase(std::unique(place.open.begin(), place.open.end()), place.open.end());
    if (place.open.size() > kMostOpen) refuse("it has too many possibilities");
  }

  PlacePointer walked(const PlacePointer& place, std::string_view text) {
    start();
    const std::int32_t to = walk(index_of(place), text);
    return to == kNowhere ? nullptr : places_[static_cast<std::size_t>(to)].place;
  }

  PlacePointer finished(Place place) const {
    tidy(place);
    for (const Open& open : place.open) place.sets.push_back(rules_.elements[open.at].value);
    std::sort(place.sets.begin(), place.sets.end());
    place.sets.erase(std::unique(place.sets.begin(), place.sets.end()), place.sets.end());
    return std::make_shared<const Place>(std::move(place));
  }

  std::int32_t walk(std::int32_t from, std::string_view text) {
    for (const char byte : text) {
      from = next(from, static_cast<std::uint8_t>(byte));
      if (from == kNowhere) break;
    }
    return from;
  }

  std::int32_t next(std::int32_t from, std::uint8_t byte) {
    const Known& known = places_[static_cast<std::size_t>(from)];
    if (known.next[byte] != kUnknown) return known.next[byte];
    const PlacePointer place = known.place;
    Partial partial = place->partial;
    std::uint32_t low = 0, high = 0;
    const bool is_text = takes(partial, byte) && range_of(partial, low, high);
    const std::int32_t to = is_text ? stepped(from, *place, {partial, low, high}) : kNowhere;
    places_[static_cast<std::size_t>(from)].next[byte] = to;
    return to;
  }

  /// A character, or what it may become.
  struct Read {
    Partial partial;
    std::uint32_t low, high;
  };

  std::int32_t stepped(std::int32_t from, const Place& place, const Read& read) {
    std::uint64_t match = 0;
    matches_.clear();
    for (std::size_t i = 0; i < place.sets.size(); ++i) {
      step();
      matches_.push_back(rules_.sets[place.sets[i]].meets(read.low, read.high));
      if (matches_.back() && i < kWordBits) match |= std::uint64_t{1} << i;
    }
    if (std::find(matches_.begin(), matches_.end(), true) == matches_.end()) return kNowhere;
    // Characters of the same sets lead to the same place.
    const bool known = read.partial.left == 0 && place.sets.size() <= kWordBits;
    if (known) {
      for (const auto& [same, to] : places_[static_cast<std::size_t>(from)].behind) {
        if (same == match) return to;
      }
    }
    Place next;
    for (const Open& open : place.open) {
      step();
      const std::uint32_t set = rules_.elements[open.at].value;
      const auto at = std::lower_bound(place.sets.begin(), place.sets.end(), set) - place.sets.begin();
      if (!matches_[static_cast<std::size_t>(at)]) continue;
      if (read.partial.left > 0) {
        next.open.push_back(open);
      } else {
        expand({open.at + 1, open.back}, next);
      }
    }
    if (read.partial.left > 0) next.partial = read.partial;
    const std::int32_t to = next.nowhere() ? kNowhere : index_of(finished(std::move(next)));
    if (known) places_[static_cast<std::size_t>(from)].behind.emplace_back(match, to);
    return to;
  }

  const GrammarRules rules_;
  const std::shared_ptr<const TokenTexts> texts_;
  const std::vector<std::pair<Token, std::string>> shown_;
  const GrammarWork work_;
  const std::size_t each_;  ///< steps that each token adds to what may be taken
  PlacePointer first_;
  std::mutex mutex_;  ///< of all below
  std::vector<Open> returns_;
  std::unordered_map<std::uint64_t, std::uint32_t> return_index_;
  std::vector<Known> places_;
  std::unordered_map<std::string, std::int32_t> index_;
  std::size_t steps_ = 0, all_steps_ = 0;  ///< of this call, and ever
  std::size_t taken_ = 0;                  ///< tokens
  std::size_t sets_ = 0, open_ = 0;
  std::vector<Open> todo_;
  std::vector<bool> matches_;  ///< [place.sets]
  std::unordered_set<std::uint64_t> seen_;
};

Grammar::Grammar(std::string_view gbnf, std::shared_ptr<const TokenTexts> texts,
                 std::vector<std::pair<Token, std::string>> shown, const GrammarWork& work)
    : places_(std::make_unique<GrammarPlaces>(gbnf, std::move(texts), std::move(shown), work)) {}
Grammar::~Grammar() = default;

GrammarFollower::GrammarFollower(const GrammarWish& wish)
    : grammar_(wish.grammar), triggers_(wish.triggers), names_(wish.names) {
  check(grammar_ != nullptr, "a state of a grammar");
  check(triggers_.empty() || names_.empty(), "triggers or names");
  if (!triggers_.empty()) phase_ = Phase::waiting;
  if (!names_.empty()) {
    phase_ = Phase::following;
    triggers_.emplace_back(1, kBrace);
  }
  place_ = grammar_->places_->first();
  if (wish.said.empty()) return;
  place_ = grammar_->places_->behind(place_, wish.said);
  if (place_ == nullptr) throw UserError("the grammar does not take what the prompt ends with; change one of them");
}

std::shared_ptr<const TokenSet> GrammarFollower::allowed() const {
  return grammar_->places_->allowed(place_);
}

bool GrammarFollower::allows(Token token) const {
  return !binds() || grammar_->places_->allows(place_, token);
}

bool GrammarFollower::may_end() const {
  return !binds() || place_->ends;
}

bool GrammarFollower::must_end() const {
  return binds() && place_->ends && place_->open.empty();
}

void GrammarFollower::accept(Token token) {
  if (phase_ == Phase::free) return;
  const std::string_view text = grammar_->places_->text_of(token);
  if (phase_ == Phase::bound) {
    auto to = grammar_->places_->taken(place_, text);
    check(to != nullptr, "a token that the grammar allows");
    place_ = std::move(to);
    return;
  }
  tail_ += text;
  if (phase_ == Phase::waiting && !found_trigger()) return;
  if (names_.empty()) return bind(grammar_->places_->behind(place_, tail_));
  follow();
}

void GrammarFollower::bind(std::shared_ptr<const Place> to) {
  place_ = std::move(to);
  phase_ = place_ != nullptr ? Phase::bound : Phase::free;
  tail_.clear();
}

bool GrammarFollower::found_trigger() {
  std::size_t begin = std::string::npos, longest = 0;
  for (const std::string& trigger : triggers_) {
    begin = std::min(begin, tail_.find(trigger));
    longest = std::max(longest, trigger.size());
  }
  if (begin != std::string::npos) {
    tail_.erase(0, begin);
    return true;
  }
  if (tail_.size() >= longest) tail_.erase(0, tail_.size() - longest + 1);
  return false;
}

void GrammarFollower::follow() {
  phase_ = Phase::following;
  auto to = grammar_->places_->behind(place_, tail_);
  if (to != nullptr) {
    if (has_name()) return bind(std::move(to));
    if (tail_.size() > kLongestOpening) bind(nullptr);
    return;
  }
  // Words; a call may come behind them, once.
  const bool tried = tail_.front() == kBrace;
  phase_ = Phase::waiting;
  if (tried) return bind(nullptr);
  if (found_trigger()) follow();
}

bool GrammarFollower::has_name() const {
  GrammarPlaces& places = *grammar_->places_;
  for (const std::string& name : names_) {
    for (std::size_t at = tail_.find(name); at != std::string::npos; at = tail_.find(name, at + 1)) {
      if (at + name.size() >= tail_.size()) break;  // it may be the beginning of another
      const auto place = places.behind(place_, std::string_view(tail_).substr(0, at));
      if (places.behind(place, kNoName) != nullptr) continue;  // any text may stand there
      const auto fits = [&](const std::string& each) { return places.behind(place, each) != nullptr; };
      if (std::all_of(names_.begin(), names_.end(), fits)) return true;
    }
  }
  return false;
}

}  // namespace glimpse::text
