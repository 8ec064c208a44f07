// Kept prefixes: sequences of requests that have ended, and of prompts that were completed, which nobody changes any
// more. Later requests whose prompts begin alike fork them, which copies no row. Owned by the engine's runtime, it
// holds its sequences' pages until it gives them back. One thread at a time. Inside engine only;
// docs/design-notes/prefix-cache.md has the rule.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "glimpse/engine/active_sequence.h"
#include "glimpse/engine/prefix/admitted.h"

namespace glimpse::engine {

struct KeptPrefix {
  ActiveSequence sequence;  ///< with logits: as the end of its prompt left it; without: rows alone
  std::string salt;
  bool whole = true;             ///< no head forgot a token
  bool written = false;          ///< to the disk, or tried (PrefixCache::next_to_write)
  std::int64_t other_bytes = 0;  ///< of what it keeps beside its pages

  bool at_end() const { return !sequence.logits.empty(); }
  Offered offered() const { return {sequence.tokens, &sequence.plan(), &sequence.made, whole, at_end()}; }
};

class PrefixCache {
 public:
  /// Keeps so many bytes at most; 0: nothing, -1: no bound of its own.
  static constexpr std::size_t kMost = 256;  ///< prefixes; so looking through them stays cheap
  explicit PrefixCache(std::int64_t bytes) : limit_(bytes) {}

  bool on() const { return limit_ != 0; }
  /// Takes a sequence, with the logits of its last token where it is as the end of a prompt left it. Those that it
  /// makes superfluous go, and the oldest until all fits; a sequence that is of no use goes at once, and one goes where
  /// memory is short, which is thrown.
  void keep(kv::Cache& cache, ActiveSequence&& sequence, const std::string& salt);
  /// Gives back the one that was used longest ago. False: there is none.
  bool evict(kv::Cache& cache);

  struct Found {
    KeptPrefix* prefix = nullptr;  ///< null: nothing serves. Valid until the next keep or evict
    Admitted share;
  };
  /// The one that serves most of the prompt.
  Found find(const Asked& asked, const std::string& salt);
  /// It was used last of all.
  void touch(const KeptPrefix& prefix);

  /// The one that gives way first of those that are not written, and counts as written from now on. Null: a `share`-th
  /// of the room is free or is pages of written ones that give way before it.
  const KeptPrefix* next_to_write(const kv::Cache& cache, std::int64_t share);

  /// Called with each one that evict() gives back, before it does.
  void on_evict(std::function<void(const KeptPrefix&)> callback) { on_evict_ = std::move(callback); }
  /// Called with each one that goes, whatever the reason, while it is whole.
  void on_drop(std::function<void(const KeptPrefix&)> callback) { on_drop_ = std::move(callback); }
  /// The one used longest ago first.
  const std::list<KeptPrefix>& all() const { return prefixes_; }
  std::size_t size() const { return prefixes_.size(); }
  /// Pages that kept prefixes hold, each once, whoever else reads them.
  std::int64_t pages() const { return pages_; }
  /// Times that a prefix came or went.
  std::int64_t changes() const { return changes_; }
  /// Of these, those that one of the sequences reads, too; none of them is away. Any thread while nothing changes.
  std::int64_t pages_read_by(const kv::Cache& cache, std::span<const kv::SequenceId> sequences) const;
  /// Those and what else is kept.
  std::int64_t bytes() const { return bytes_; }

 private:
  /// Takes the only one of the list, or leaves it.
  void add(kv::Cache& cache, std::list<KeptPrefix>& fresh);
  /// Its pages and bytes come to the sums, or leave them.
  void count(const kv::Cache& cache, const KeptPrefix& prefix, bool comes);
  void drop(kv::Cache& cache, std::list<KeptPrefix>::iterator prefix);
  /// Pages that are free once the written ones in front of all others are gone, and nobody else reads them.
  std::int64_t pages_of_written(const kv::Cache& cache) const;

  std::int64_t limit_ = 0, pages_ = 0, bytes_ = 0, other_bytes_ = 0, changes_ = 0;
  std::list<KeptPrefix> prefixes_;  ///< the one used longest ago first
  std::function<void(const KeptPrefix&)> on_evict_, on_drop_;
  std::int64_t written_pages_ = -1;     ///< pages_of_written(); -1: not known since something changed
  std::vector<std::uint32_t> readers_;  ///< [page of the pool] kept prefixes that have it
};

/// A new sequence for a request of that plan with what `share` says of the source, by admitted(). Throws CacheFull
/// where pages that wait in the tier find no room, and UserError; nothing has changed then.
ActiveSequence fork_prefix(const ActiveSequence& source, const plan::Plan& plan, const Admitted& share,
                           Programs& programs, kv::Cache& cache);

}  // namespace glimpse::engine
