#include "glimpse/text/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/text/grammar_rules.h"

namespace glimpse::text {
namespace {

using Kind = GrammarElement::Kind;

// Counted, not timed: the same request does the same everywhere.
constexpr std::size_t kMostSteps = 4u << 20;    ///< of one call: about a third of a second
constexpr std::size_t kMostOpen = 1u << 14;     ///< possibilities at one place
constexpr std::size_t kMostReturns = 1u << 20;  ///< returns that were ever pushed
constexpr std::size_t kKeptPlaces = 1u << 12;   ///< 1 KiB each
constexpr std::size_t kKeptOpen = 1u << 21;     ///< possibilities of all kept places: 16 bytes each
constexpr std::size_t kMostPlaces = 1u << 15;   ///< within one call
constexpr std::size_t kKeptSets = 256;          ///< sets of tokens
constexpr std::uint32_t kBottom = 0;            ///< the return behind which the grammar ends
constexpr std::int32_t kUnknown = -1, kNowhere = -2;

[[noreturn]] void refuse(std::string_view what) {
  throw UserError(fmt::format("the grammar is too ambiguous or too deep here ({}); simplify it", what));
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

/// The element that must match next, and where the grammar goes on behind its rule.
struct Open {
  std::uint32_t at = 0, back = 0;
  auto operator<=>(const Open&) const = default;
};

}  // namespace

struct GrammarState::Place {
  std::vector<Open> open;  ///< ascending
  bool ends = false;       ///< the text may end
  Partial partial;
  bool nowhere() const { return open.empty() && !ends; }
};

/// A grammar's places and the steps between them, by bytes, as far as they were asked for.
class GrammarPlaces {
 public:
  using Place = GrammarState::Place;
  using PlacePointer = std::shared_ptr<const Place>;

  GrammarPlaces(std::string_view gbnf, std::shared_ptr<const TokenTexts> texts,
                std::vector<std::pair<Token, std::string>> shown)
      : rules_(read_grammar(gbnf)), texts_(std::move(texts)), shown_(std::move(shown)) {
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
    start();
    const std::int32_t to = walk(index_of(place), text);
    return to == kNowhere ? nullptr : places_[static_cast<std::size_t>(to)].place;
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
    for (std::uint32_t i = 0; i < nodes.size();) {
      const TokenTexts::Node& node = nodes[i];
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
  };

  /// Before each call. Places that states hold stay theirs.
  void start() {
    steps_ = 0;
    if (places_.size() <= kKeptPlaces && open_ <= kKeptOpen) return;
    places_.clear();
    index_.clear();
    sets_ = open_ = 0;
  }

  void step() {
    if (++steps_ > kMostSteps) refuse("it takes too many steps");
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
    const auto [found, added] = index_.try_emplace(std::move(key), static_cast<std::int32_t>(places_.size()));
    if (added) {
      if (places_.size() >= kMostPlaces) refuse("it has too many places");
      places_.push_back({place, {}, nullptr});
      places_.back().next.fill(kUnknown);
      open_ += place->open.size();
    }
    return found->second;
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

  static PlacePointer finished(Place place) {
    tidy(place);
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
    Known& known = places_[static_cast<std::size_t>(from)];
    if (known.next[byte] != kUnknown) return known.next[byte];
    const PlacePointer place = known.place;
    std::optional<Place> to = stepped(*place, byte);
    const std::int32_t index = !to || to->nowhere() ? kNowhere : index_of(finished(*std::move(to)));
    places_[static_cast<std::size_t>(from)].next[byte] = index;
    return index;
  }

  std::optional<Place> stepped(const Place& from, std::uint8_t byte) {
    Partial partial = from.partial;
    if (partial.left > 0) {
      if ((byte & 0xc0) != 0x80) return std::nullopt;
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
      return std::nullopt;
    }
    std::uint32_t low = 0, high = 0;
    if (!range_of(partial, low, high)) return std::nullopt;
    Place to;
    for (const Open& open : from.open) {
      step();
      if (!rules_.sets[rules_.elements[open.at].value].meets(low, high)) continue;
      if (partial.left > 0) {
        to.open.push_back(open);
      } else {
        expand({open.at + 1, open.back}, to);
      }
    }
    if (partial.left > 0) to.partial = partial;
    return to;
  }

  const GrammarRules rules_;
  const std::shared_ptr<const TokenTexts> texts_;
  const std::vector<std::pair<Token, std::string>> shown_;
  PlacePointer first_;
  std::mutex mutex_;  ///< of all below
  std::vector<Open> returns_;
  std::unordered_map<std::uint64_t, std::uint32_t> return_index_;
  std::vector<Known> places_;
  std::unordered_map<std::string, std::int32_t> index_;
  std::size_t steps_ = 0, sets_ = 0, open_ = 0;
  std::vector<Open> todo_;
  std::unordered_set<std::uint64_t> seen_;
};

Grammar::Grammar(std::string_view gbnf, std::shared_ptr<const TokenTexts> texts,
                 std::vector<std::pair<Token, std::string>> shown)
    : places_(std::make_unique<GrammarPlaces>(gbnf, std::move(texts), std::move(shown))) {}
Grammar::~Grammar() = default;

GrammarState::GrammarState(const GrammarWish& wish) : grammar_(wish.grammar), triggers_(wish.triggers) {
  check(grammar_ != nullptr, "a state of a grammar");
  if (!triggers_.empty()) phase_ = Phase::waiting;
  place_ = grammar_->places_->first();
  if (wish.said.empty()) return;
  place_ = grammar_->places_->behind(place_, wish.said);
  if (place_ == nullptr) throw UserError("the grammar does not take what the prompt ends with; change one of them");
}

std::shared_ptr<const TokenSet> GrammarState::allowed() const {
  return grammar_->places_->allowed(place_);
}

bool GrammarState::allows(Token token) const {
  return !binds() || grammar_->places_->allows(place_, token);
}

bool GrammarState::may_end() const {
  return !binds() || place_->ends;
}

bool GrammarState::must_end() const {
  return binds() && place_->ends && place_->open.empty();
}

void GrammarState::accept(Token token) {
  if (phase_ == Phase::free) return;
  const std::string_view text = grammar_->places_->text_of(token);
  if (phase_ == Phase::bound) {
    auto to = grammar_->places_->behind(place_, text);
    check(to != nullptr, "a token that the grammar allows");
    place_ = std::move(to);
    return;
  }
  tail_ += text;
  std::size_t begin = std::string::npos, longest = 0;
  for (const std::string& trigger : triggers_) {
    begin = std::min(begin, tail_.find(trigger));
    longest = std::max(longest, trigger.size());
  }
  if (begin == std::string::npos) {
    if (tail_.size() >= longest) tail_.erase(0, tail_.size() - longest + 1);
    return;
  }
  place_ = grammar_->places_->behind(place_, std::string_view(tail_).substr(begin));
  phase_ = place_ != nullptr ? Phase::bound : Phase::free;
  tail_.clear();
}

}  // namespace glimpse::text
