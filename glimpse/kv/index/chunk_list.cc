#include "glimpse/kv/index/chunk_list.h"

#include <algorithm>

#include "glimpse/base/error.h"

namespace glimpse::kv {

int chunk_length(std::span<const Boundary> classes, std::int64_t begin, std::int64_t end) {
  const int most = static_cast<int>(std::min<std::int64_t>(kMostChunk, end - begin));
  if (classes.empty()) return most;
  int length = most;
  for (int candidate = most; candidate >= kLeastChunk; --candidate) {
    const auto at = [&](int tokens) { return classes[static_cast<std::size_t>(begin + tokens - 1)]; };
    if (at(candidate) < at(length)) length = candidate;
  }
  return length;
}

namespace {

std::int64_t buffered(std::int64_t budget, std::int64_t local, std::int64_t sink) {
  return std::max<std::int64_t>(1, std::min({local, budget / 2, budget - sink}));
}

}  // namespace

std::int64_t buffered_tokens(const plan::Selector& selector, std::int64_t tokens) {
  return buffered(plan::budget_tokens(selector.budget, tokens), selector.local, selector.sink);
}

ChunkList::ChunkList(const plan::Selector& selector)
    : budget_(selector.budget),
      sink_(selector.sink),
      local_(selector.local),
      fixed_(selector.terms.front().index.fixed_chunks) {}

std::int64_t ChunkList::buffer_tokens(std::int64_t tokens) const {
  return buffered(plan::budget_tokens(budget_, tokens), local_, sink_);
}

bool ChunkList::cuts_at(std::int64_t now) const {
  // The current token stays: the buffer holds at least that one.
  return now - covered() >= buffer_tokens(now) && now - covered() > 1;
}

std::int64_t ChunkList::idle_until() const {
  std::int64_t now = std::max(seen_, covered());
  while (!cuts_at(now + 1)) ++now;  // a buffer has an end
  return now;
}

void ChunkList::cut(std::span<const Boundary> classes, std::int64_t end) {
  const std::int64_t begin = covered(), last = std::min(begin + kMostChunk, end);
  check(classes.empty() || static_cast<std::int64_t>(classes.size()) >= last, "each token has a boundary class");
  const int length = chunk_length(fixed_ ? std::span<const Boundary>() : classes, begin, end);
  ends_.push_back(static_cast<std::int32_t>(begin + length));
}

void ChunkList::advance(std::span<const Boundary> classes, std::int64_t prompt_tokens, std::int64_t tokens) {
  if (tokens < std::max<std::int64_t>(1, prompt_tokens)) return;
  while (covered() < prompt_tokens) cut(classes, prompt_tokens);
  for (std::int64_t now = std::max(seen_ + 1, prompt_tokens); now <= tokens; ++now) {
    while (cuts_at(now)) cut(classes, now - 1);
  }
  seen_ = std::max(seen_, tokens);
}

ChunkList::ChunkList(const ChunkList& before, Behind)
    : budget_(before.budget_), sink_(before.sink_), local_(before.local_), fixed_(before.fixed_), seen_(before.seen_) {
  if (before.count() > 0) ends_.push_back(before.ends_.back());
}

std::int64_t ChunkList::covered_after(std::span<const Boundary> classes, std::int64_t prompt_tokens,
                                      std::int64_t tokens) const {
  ChunkList rest(*this, Behind());
  rest.advance(classes, prompt_tokens, tokens);
  return rest.covered();
}

std::int32_t ChunkList::chunk_of(std::int64_t token) const {
  check(token >= 0 && token < covered(), "only covered tokens lie in chunks");
  return static_cast<std::int32_t>(std::upper_bound(ends_.begin(), ends_.end(), token) - ends_.begin());
}

}  // namespace glimpse::kv
