// How the rows of K and V of a sequence came to be: what decides who else may read them. A value; one thread at a time.
// Inside engine only; docs/design-notes/prefix-cache.md has the rule.
#pragma once

#include <cstdint>
#include <vector>

#include "glimpse/base/bytes.h"
#include "glimpse/plan/plan.h"

namespace glimpse::engine {

enum class Made : std::uint8_t {
  dense_chunk,   ///< a chunk of a prompt that read everything
  sparse_chunk,  ///< a chunk of a prompt under the sequence's plan, which prefills sparsely
  dense,         ///< one token or few that read everything: decoded, verified or corrected
  sparse,        ///< otherwise: decoded by a plan, prefilled by another plan, or of a file
};

/// Rows from the end of the run before to `end`. Each chunk is a run of its own.
struct MadeRun {
  std::int64_t end = 0;
  Made how = Made::sparse;
  bool alone = false;     ///< a chunk that was the only one in its pass
  bool observed = false;  ///< a chunk with rows that the plan observed
  friend bool operator==(const MadeRun&, const MadeRun&) = default;
};

/// A chunk up to `end` of a prompt under the plan.
MadeRun made_chunk(const plan::Plan& plan, std::int64_t end, std::int64_t prompt_end, bool alone);

class MadeRows {
 public:
  /// Rows up to run.end follow. Rows between those that are noted and `begin` are nobody's: sparse.
  void add(std::int64_t begin, const MadeRun& run);
  /// Rows [begin, end) were replaced by those of a dense pass.
  void correct(std::int64_t begin, std::int64_t end);
  void cut(std::int64_t length);
  /// The rows are read under another plan from now on: what was prefilled sparsely is nobody's.
  void change_plan();

  std::int64_t length() const { return runs_.empty() ? 0 : runs_.back().end; }
  /// How many of the first rows were read densely; with `own_plan` those of sparse chunks count, too.
  std::int64_t dense_rows(bool own_plan) const;
  /// How many of the first rows are chunks of so many rows, made so, alone, and not observed.
  std::int64_t whole_chunks(std::int64_t chunk, Made how) const;
  /// True for a prompt of `length` in chunks of so many rows and the rest, each alone.
  bool is_prefill_alone(std::int64_t chunk, std::int64_t length) const;
  /// True where the other one begins with these rows.
  bool begins(const MadeRows& other) const;

  /// As bytes, and back for a sequence of `length`: throws UserError for what no sequence has.
  void save(ByteWriter& to) const;
  void load(ByteReader& from, std::int64_t length);

  friend bool operator==(const MadeRows&, const MadeRows&) = default;

 private:
  std::vector<MadeRun> runs_;
};

}  // namespace glimpse::engine
