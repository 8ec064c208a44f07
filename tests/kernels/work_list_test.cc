// The list that threads share: every entry is in one split, and one thread is told that an output is finished.
#include "glimpse/kernels/cpu/work_list.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <thread>
#include <vector>

#include "glimpse/kernels/cpu/row_outputs.h"

namespace glimpse::kernels {
namespace {

Output reads(std::int32_t entries) {
  Output output;
  output.entries = entries;
  return output;
}

/// How often the splits hold each entry of each output, in the order of a single thread.
struct Drained {
  std::vector<std::vector<int>> entries;
  std::vector<Split> splits;
};

Drained drain_alone(WorkList<>& work) {
  Drained drained;
  for (int i = 0; i < work.outputs(); ++i) {
    drained.entries.emplace_back(static_cast<std::size_t>(work.output(i).entries), 0);
  }
  work.drain(1, [&](const Split& split, const Split*) {
    drained.splits.push_back(split);
    for (std::int32_t i = split.begin; i < split.end; ++i) {
      ++drained.entries[static_cast<std::size_t>(split.output)][static_cast<std::size_t>(i)];
    }
  });
  return drained;
}

TEST(WorkList, OutputsThatAreReadWholeAreCutRangeByRange) {
  WorkList<> work;
  const int window = work.add(reads(2000));
  work.add_range(window, 0, 4);
  work.add_range(window, 1900, 2000);
  const int first = work.outputs();
  const std::array<std::int32_t, 4> lengths{1, kSplitTokens, kSplitTokens + 1, 3 * kSplitTokens};
  for (const std::int32_t length : lengths) work.add(reads(length));
  work.add_whole(window);
  work.seal(8);
  const Drained drained = drain_alone(work);
  for (int i = first; i < work.outputs(); ++i) {
    for (const int times : drained.entries[static_cast<std::size_t>(i)]) ASSERT_EQ(times, 1) << "output " << i;
  }
  // What has splits gets no more: a window stays one.
  const std::vector<int>& seen = drained.entries[static_cast<std::size_t>(window)];
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 104);
  EXPECT_EQ(work.output(window).partials, 2);
  std::int32_t begin = 0;
  for (std::size_t i = 2; i < drained.splits.size(); ++i) {  // behind the window's
    const Split& split = drained.splits[i];
    EXPECT_GE(split.begin, begin);
    EXPECT_LE(split.end - split.begin, kSplitTokens);
    EXPECT_EQ(split.partial, split.begin / kSplitTokens);
    begin = split.begin;
  }
}

TEST(WorkList, AnOutputWithoutEntriesIsFinishedToo) {
  WorkList<> work;
  work.add(reads(0));
  work.add_whole(0);
  work.seal(8);
  int finished = 0;
  work.drain(1, [&](const Split& split, const Split*) {
    EXPECT_EQ(split.begin, split.end);
    finished += work.finish(split) ? 1 : 0;
  });
  EXPECT_EQ(finished, 1);
}

TEST(WorkList, PartialResultsLieApartAndOneThreadFinishesAnOutput) {
  constexpr int kOutputs = 40, kDim = 8, kRounds = 20;
  WorkList<> work;
  for (int round = 0; round < kRounds; ++round) {
    work.clear();
    for (int i = 0; i < kOutputs; ++i) {
      Output output = reads(1 + i * 97);
      output.queries = 1 + i % 3;
      const int number = work.add(output);
      if (i % 5 == 0) work.add_split(number, 0, output.entries, 3);  // a split with three results
    }
    work.add_whole(0);
    work.seal(kDim);
    std::array<std::atomic<int>, kOutputs> finished{}, wrong{};
    // Each split writes its own number; who finishes finds all of them in order.
    const auto run = [&] {
      work.drain(3, [&](const Split& split, const Split*) {
        const Output& output = work.output(split);
        for (int p = split.partial; p < split.partial + split.partials; ++p) {
          std::fill_n(work.partial(output, p), partial_floats(output.queries, kDim), static_cast<float>(p));
        }
        if (!work.finish(split)) return;
        ++finished[static_cast<std::size_t>(split.output)];
        for (int p = 0; p < output.partials; ++p) {
          const float* from = work.partial(output, p);
          for (std::size_t i = 0; i < partial_floats(output.queries, kDim); ++i) {
            wrong[static_cast<std::size_t>(split.output)] += from[i] == static_cast<float>(p) ? 0 : 1;
          }
        }
      });
    };
    std::thread one(run), two(run);
    run();
    one.join();
    two.join();
    for (std::size_t i = 0; i < kOutputs; ++i) {
      ASSERT_EQ(finished[i].load(), 1) << "output " << i;
      ASSERT_EQ(wrong[i].load(), 0) << "output " << i;
    }
  }
}

/// What the heads of one row that sees 20 of 24 slots read, output by output.
std::vector<std::vector<std::int32_t>> entries_read(const std::vector<Read>& reads, const SetTable<Place::host>& sets) {
  const std::vector<HeadView> views(reads.size(), HeadView{.slots = 24});
  const std::int32_t sequence = 0, behind = 5;
  const AttendOp<Place::host> op{
      .cache = {.views = views.data(), .sequences = 1, .kv_heads = static_cast<int>(reads.size())},
      .rows = {&sequence, &behind, 1},
      .group = 2,
      .reads = reads.data(),
      .sets = sets};
  WorkList<> work;
  std::vector<int> heads;
  add_attended(op, 0, work, [&](const Output& output, int head) {
    EXPECT_EQ(output.view, &views[static_cast<std::size_t>(head)]);
    EXPECT_EQ(output.query / 2, static_cast<std::size_t>(head));
    heads.push_back(head);
    return output;
  });
  work.seal(8);
  EXPECT_EQ(heads.size(), static_cast<std::size_t>(work.outputs()));
  std::vector<std::vector<std::int32_t>> read(static_cast<std::size_t>(work.outputs()));
  work.drain(1, [&](const Split& split, const Split*) {
    const Output& output = work.output(split);
    for (std::int32_t i = split.begin; i < split.end; ++i) {
      read[static_cast<std::size_t>(split.output)].push_back(output.list == nullptr ? i : output.list[i]);
    }
  });
  return read;
}

TEST(RowOutputs, AreWhatEachHeadReads) {
  std::vector<std::int32_t> all(20);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::int32_t> slots{3, 9, 19, 0, 0, 7}, counts{3, kEverything};
  const SetTable<Place::host> sets{slots.data(), counts.data(), 3, 2};
  const auto window = [](std::int32_t sink, std::int32_t local) {
    return Read{.kind = Read::Kind::window, .sink = sink, .local = local};
  };
  const Read of_sets{.kind = Read::Kind::sets}, apart{.kind = Read::Kind::sets, .per_query = 1};
  const auto read = entries_read({Read{.kind = Read::Kind::nothing}, Read{}, window(0, 0), window(1, 2), window(8, 12),
                                  window(9, 12), of_sets, apart},
                                 sets);
  const std::vector<std::vector<std::int32_t>> want{{}, all, {}, {0, 18, 19}, all, all, {3, 9, 19}, {3, 9, 19}, all};
  EXPECT_EQ(read, want);
}

}  // namespace
}  // namespace glimpse::kernels
