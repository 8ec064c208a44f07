#include "glimpse/engine/prefix/made.h"

#include <algorithm>

namespace glimpse::engine {
namespace {

bool is_chunk(Made how) {
  return how == Made::dense_chunk || how == Made::sparse_chunk;
}

/// What is left of a chunk is none that a request alone would have made.
void shorten(MadeRun& run, std::int64_t end) {
  if (run.end <= end) return;
  run.end = end;
  run.alone = false;
}

}  // namespace

MadeRun made_chunk(const plan::Plan& plan, std::int64_t end, std::int64_t prompt_end, bool alone) {
  const plan::Prefill& prefill = plan.prefill;
  const std::int64_t observed = prefill.observe == plan::Observe::all         ? prompt_end
                                : prefill.observe == plan::Observe::last_rows ? prefill.observe_rows
                                                                              : 0;
  return {end, prefill.sparse ? Made::sparse_chunk : Made::dense_chunk, alone, end > prompt_end - observed};
}

void MadeRows::add(std::int64_t begin, const MadeRun& run) {
  if (begin > length()) runs_.push_back({begin, Made::sparse});
  if (!runs_.empty() && !is_chunk(run.how) && runs_.back().how == run.how) {
    runs_.back().end = run.end;
  } else {
    runs_.push_back(run);
  }
}

void MadeRows::correct(std::int64_t begin, std::int64_t end) {
  const std::vector<MadeRun> before = std::move(runs_);
  runs_.clear();
  std::int64_t first = 0;
  for (MadeRun run : before) {
    if (first >= begin) break;
    first = run.end;
    shorten(run, begin);
    runs_.push_back(run);
  }
  add(begin, {end, Made::dense});
  for (const MadeRun& run : before) {
    if (run.end > end) runs_.push_back(run);
  }
}

void MadeRows::cut(std::int64_t length) {
  while (runs_.size() > 1 && runs_[runs_.size() - 2].end >= length) runs_.pop_back();
  if (!runs_.empty()) shorten(runs_.back(), length);
  if (length == 0) runs_.clear();
}

void MadeRows::change_plan() {
  for (MadeRun& run : runs_) {
    if (run.how == Made::sparse_chunk) run.how = Made::sparse;
  }
}

std::int64_t MadeRows::dense_rows(bool own_plan) const {
  std::int64_t rows = 0;
  for (const MadeRun& run : runs_) {
    if (run.how == Made::sparse || (run.how == Made::sparse_chunk && !own_plan)) break;
    rows = run.end;
  }
  return rows;
}

std::int64_t MadeRows::whole_chunks(std::int64_t chunk, Made how) const {
  std::int64_t rows = 0;
  for (const MadeRun& run : runs_) {
    if (run.how != how || !run.alone || run.observed || run.end != rows + chunk) break;
    rows = run.end;
  }
  return rows;
}

bool MadeRows::is_prefill_alone(std::int64_t chunk, std::int64_t length) const {
  std::int64_t rows = 0;
  for (const MadeRun& run : runs_) {
    if (!is_chunk(run.how) || !run.alone || run.end != std::min(rows + chunk, length)) return false;
    rows = run.end;
  }
  return rows == length;
}

bool MadeRows::begins(const MadeRows& other) const {
  if (runs_.size() > other.runs_.size()) return false;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    MadeRun theirs = other.runs_[i];
    // A run of single tokens may have gone on.
    if (i + 1 == runs_.size() && !is_chunk(theirs.how)) theirs.end = std::min(theirs.end, runs_[i].end);
    if (runs_[i] != theirs) return false;
  }
  return true;
}

void MadeRows::save(ByteWriter& to) const {
  to.value(static_cast<std::uint64_t>(runs_.size()));
  for (const MadeRun& run : runs_) {
    to.value(run.end);
    to.value(static_cast<std::uint8_t>(run.how));
    to.value(static_cast<std::uint8_t>(run.alone ? 1 : 0));
    to.value(static_cast<std::uint8_t>(run.observed ? 1 : 0));
  }
}

void MadeRows::load(ByteReader& from, std::int64_t length) {
  runs_.clear();
  const auto count = from.value<std::uint64_t>(0, static_cast<std::uint64_t>(length), "runs of rows");
  std::int64_t begin = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    MadeRun run;
    run.end = from.value<std::int64_t>(begin + 1, length, "the end of a run of rows");
    run.how = static_cast<Made>(from.value<std::uint8_t>(0, 3, "how rows were made"));
    run.alone = from.flag("whether a chunk was alone");
    run.observed = from.flag("whether a chunk was observed");
    begin = run.end;
    runs_.push_back(run);
  }
  from.require(begin == length, "the rows that were made");
}

}  // namespace glimpse::engine
