// Which of many strings occur in a text, found in one pass over it however many there are (Aho-Corasick). Owns its
// states. Const after construction; any thread may call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace glimpse::text {

class StringSet {
 public:
  /// Add all strings, then call `finish` once, then search.
  void add(std::string_view string);
  void finish();

  /// Adds to `found`, which has an entry for each string in order of `add`, those that occur in `text`.
  void search(std::string_view text, std::vector<bool>& found) const;
  std::size_t size() const { return end_of_.size(); }

 private:
  using State = std::int32_t;
  State next(State state, unsigned char byte) const;  ///< 0: none

  std::array<State, 256> first_{};                  ///< from state 0, where most bytes of most texts leave it; 0: none
  std::unordered_map<std::uint64_t, State> edges_;  ///< from the others, by state and byte
  std::vector<State> end_of_;                       ///< of each string, the state that it ends in
  std::vector<State> fallback_ = {0};               ///< the longest suffix of a state's string that is a state too
  std::vector<State> parent_ = {0};
  std::vector<unsigned char> byte_ = {0};
};

}  // namespace glimpse::text
