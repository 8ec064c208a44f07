// Which of many strings occur in a text, found in one pass over it however many there are (Aho-Corasick). Owns its
// nodes. Const after construction; any thread may call.
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
  using Node = std::int32_t;
  Node next(Node node, unsigned char byte) const;  ///< 0: none

  std::array<Node, 256> first_{};                  ///< from node 0, where most bytes of most texts leave it; 0: none
  std::unordered_map<std::uint64_t, Node> edges_;  ///< from the others, by node and byte
  std::vector<Node> end_of_;                       ///< of each string, the node that it ends in
  std::vector<Node> fallback_ = {0};               ///< the longest suffix of a node's string that is a node too
  std::vector<Node> parent_ = {0};
  std::vector<unsigned char> byte_ = {0};
};

}  // namespace glimpse::text
