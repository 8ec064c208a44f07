// Kept prefixes in files: saved sessions with how their rows were made, in a folder that another engine of the same
// model finds again. Files of other models, and those that cannot be read, are left alone. Not more than so many bytes
// lie there: the oldest go. One thread at a time; several processes may share a folder. Inside engine only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "glimpse/engine/prefix/prefix_cache.h"
#include "glimpse/engine/session/saved.h"

namespace glimpse::engine {

struct StoredPrefix {
  std::filesystem::path file;
  std::int64_t bytes = 0;
  std::vector<Token> tokens;
  plan::Plan plan;
  MadeRows made;
  std::string salt;
  bool whole = true, at_end = false;

  Offered offered() const { return {tokens, &plan, &made, whole, at_end}; }
  bool serves_as(const StoredPrefix& other) const {
    return tokens == other.tokens && plan == other.plan && made == other.made && salt == other.salt &&
           whole == other.whole && at_end == other.at_end;
  }
};

/// A stored prefix that was read back.
struct OpenedPrefix {
  explicit OpenedPrefix(const std::filesystem::path& file) : reader(file) {}

  SessionReader reader;
  SavedSession session;
  MadeRows made;
  std::string salt;
  bool at_end = false;
};

class PrefixStore {
 public:
  /// Where EngineOptions::prefix_folder names none: off. Throws UserError for a folder that cannot be written to.
  PrefixStore(const EngineOptions& options, const LoadedModel& loaded, const kv::Cache& cache);
  /// Waits for the disk.
  ~PrefixStore();
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  bool on() const { return !folder_.empty(); }
  /// Writes what is not there yet. What fails is logged: the folder is a help and no promise.
  void save(const KeptPrefix& prefix, const kv::Cache& cache, const attention::GateFiles& gates) noexcept;
  /// The same before it is needed: a piece of the one that gives way next, so that nobody waits for it then. The disk
  /// is waited for on a thread of its own. True: there was something to write.
  bool write_ahead(PrefixCache& prefixes, const kv::Cache& cache, const attention::GateFiles& gates) noexcept;
  /// It goes: what was begun of it is taken away.
  void leave(const KeptPrefix& prefix);
  /// The one that serves most of the prompt, or null. Valid until the next call. Waits for the disk where that is still
  /// being written.
  const StoredPrefix* find(const Asked& asked, const std::string& salt);
  /// Reads what its sequence is made of. Throws UserError where it is damaged or gone.
  OpenedPrefix open(const StoredPrefix& prefix);
  /// It is not looked at any more; the file stays until the same prefix is written again.
  void forget(const std::filesystem::path& file);
  std::size_t size() const { return stored_.size(); }

 private:
  /// A file that is written piece by piece.
  struct Writing {
    const KeptPrefix* prefix = nullptr;  ///< null: all of it is written
    StoredPrefix stored;                 ///< what it is going to be
    std::unique_ptr<SessionPieces> pieces;
    std::future<void> published;  ///< the last member: it ends before what it works on
  };

  /// Null: it is there, or larger than all may be.
  std::unique_ptr<Writing> begin(const KeptPrefix& prefix, const kv::Cache& cache, const attention::GateFiles& gates);
  void publish(Writing& writing);
  /// The one that waits for the disk has its name, or failed.
  void settle();
  void read(const std::filesystem::path& file);
  /// A file of that name is there, and of use as far as is known: of this engine or of another process.
  bool has(const std::filesystem::path& file);
  void drop(const std::filesystem::path& file);
  void make_room(std::int64_t bytes);

  std::filesystem::path folder_;
  std::int64_t most_bytes_ = 0, bytes_ = 0;
  std::uint64_t piece_bytes_ = 0;
  SessionModel model_;
  std::list<StoredPrefix> stored_;             ///< the one used longest ago first
  std::set<std::filesystem::path> forgotten_;  ///< did not serve as they should have
  std::unique_ptr<Writing> writing_;           ///< or none
};

}  // namespace glimpse::engine
