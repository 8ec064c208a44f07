#include "glimpse/text/string_set.h"

namespace glimpse::text {

StringSet::State StringSet::next(State state, unsigned char byte) const {
  if (state == 0) return first_[byte];
  const auto found = edges_.find(static_cast<std::uint64_t>(state) << 8 | byte);
  return found == edges_.end() ? 0 : found->second;
}

void StringSet::add(std::string_view string) {
  State state = 0;
  for (const char c : string) {
    const auto byte = static_cast<unsigned char>(c);
    State to = next(state, byte);
    if (to == 0) {
      to = static_cast<State>(parent_.size());
      (state == 0 ? first_[byte] : edges_[static_cast<std::uint64_t>(state) << 8 | byte]) = to;
      parent_.push_back(state);
      byte_.push_back(byte);
    }
    state = to;
  }
  end_of_.push_back(state);
}

void StringSet::finish() {
  // Shorter strings' states first: a state's fallback is shorter than it.
  std::vector<std::vector<State>> children(parent_.size());
  for (State state = 1; state < static_cast<State>(parent_.size()); ++state) {
    children[static_cast<std::size_t>(parent_[static_cast<std::size_t>(state)])].push_back(state);
  }
  fallback_.assign(parent_.size(), 0);
  std::vector<State> queue{0};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (const State child : children[static_cast<std::size_t>(queue[i])]) {
      queue.push_back(child);
      if (queue[i] == 0) continue;
      State from = fallback_[static_cast<std::size_t>(queue[i])];
      const unsigned char byte = byte_[static_cast<std::size_t>(child)];
      while (from != 0 && next(from, byte) == 0) from = fallback_[static_cast<std::size_t>(from)];
      fallback_[static_cast<std::size_t>(child)] = next(from, byte);
    }
  }
}

void StringSet::search(std::string_view text, std::vector<bool>& found) const {
  if (end_of_.empty()) return;
  std::vector<bool> seen(parent_.size());
  seen[0] = true;
  State state = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    State to = next(state, byte);
    while (to == 0 && state != 0) {
      state = fallback_[static_cast<std::size_t>(state)];
      to = next(state, byte);
    }
    state = to;
    // What ends here are the states on the way back; each is walked once.
    for (State at = state; !seen[static_cast<std::size_t>(at)]; at = fallback_[static_cast<std::size_t>(at)]) {
      seen[static_cast<std::size_t>(at)] = true;
    }
  }
  for (std::size_t i = 0; i < end_of_.size(); ++i) {
    if (end_of_[i] != 0 && seen[static_cast<std::size_t>(end_of_[i])]) found[i] = true;
  }
}

}  // namespace glimpse::text
