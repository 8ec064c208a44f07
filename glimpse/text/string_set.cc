#include "glimpse/text/string_set.h"

namespace glimpse::text {

StringSet::Node StringSet::next(Node node, unsigned char byte) const {
  if (node == 0) return first_[byte];
  const auto found = edges_.find(static_cast<std::uint64_t>(node) << 8 | byte);
  return found == edges_.end() ? 0 : found->second;
}

void StringSet::add(std::string_view string) {
  Node node = 0;
  for (const char c : string) {
    const auto byte = static_cast<unsigned char>(c);
    Node to = next(node, byte);
    if (to == 0) {
      to = static_cast<Node>(parent_.size());
      (node == 0 ? first_[byte] : edges_[static_cast<std::uint64_t>(node) << 8 | byte]) = to;
      parent_.push_back(node);
      byte_.push_back(byte);
    }
    node = to;
  }
  end_of_.push_back(node);
}

void StringSet::finish() {
  // Shorter strings' nodes first: a node's fallback is shorter than it.
  std::vector<std::vector<Node>> children(parent_.size());
  for (Node node = 1; node < static_cast<Node>(parent_.size()); ++node) {
    children[static_cast<std::size_t>(parent_[static_cast<std::size_t>(node)])].push_back(node);
  }
  fallback_.assign(parent_.size(), 0);
  std::vector<Node> queue{0};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (const Node child : children[static_cast<std::size_t>(queue[i])]) {
      queue.push_back(child);
      if (queue[i] == 0) continue;
      Node from = fallback_[static_cast<std::size_t>(queue[i])];
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
  Node node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    Node to = next(node, byte);
    while (to == 0 && node != 0) {
      node = fallback_[static_cast<std::size_t>(node)];
      to = next(node, byte);
    }
    node = to;
    // What ends here are the nodes on the way back; each is walked once.
    for (Node at = node; !seen[static_cast<std::size_t>(at)]; at = fallback_[static_cast<std::size_t>(at)]) {
      seen[static_cast<std::size_t>(at)] = true;
    }
  }
  for (std::size_t i = 0; i < end_of_.size(); ++i) {
    if (end_of_[i] != 0 && seen[static_cast<std::size_t>(end_of_[i])]) found[i] = true;
  }
}

}  // namespace glimpse::text
