#include "bench/head_order_cases.h"

#include <atomic>
#include <chrono>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/stream.h"
#include "glimpse/evaluate/thread_team.h"
#include "glimpse/kernels/ref/attention_ref.h"

namespace glimpse::bench {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::kSplitTokens;

/// The work of all layers under one arm: what a thread takes is a run of kernel calls.
struct Arrangement {
  HeadOrderRow row;
  std::vector<kernels::AttendItem> calls;                  ///< layer by layer
  std::vector<std::pair<std::size_t, std::size_t>> items;  ///< first and last call
  std::vector<std::size_t> layer_ends;                     ///< [layer] items
  std::vector<double> layer_s, fraction, over;
};

std::vector<char> retrieval_heads(int heads, int retrieval, bool by_kind) {
  std::vector<char> kinds(static_cast<std::size_t>(heads), 0);
  for (int r = 0; r < retrieval; ++r) kinds[static_cast<std::size_t>(by_kind ? r : r * heads / retrieval)] = 1;
  return kinds;
}

Arrangement arrange(const evaluate::KernelCache& cache, int retrieval, bool by_kind, bool pooled,
                    std::vector<float>& partials) {
  const evaluate::KernelShape& shape = cache.shape;
  Arrangement made;
  made.row = {evaluate::kernel_label("", shape).substr(1), retrieval, shape.heads, by_kind, pooled, 0, {}, {}, {}};
  const std::vector<char> all = retrieval_heads(shape.heads, retrieval, by_kind);
  const std::size_t size = kernels::partial_floats(shape.group, shape.format.dim);
  const int splits = (cache.tokens + kSplitTokens - 1) / kSplitTokens;
  const auto add_call = [&](int layer, int head, int split) {
    const auto number = static_cast<std::size_t>(layer * shape.heads + head);
    const bool whole = all[static_cast<std::size_t>(head)] != 0;
    const int entries = whole ? cache.tokens : evaluate::kGatheredRows;
    if (split * kSplitTokens >= entries) return false;
    made.calls.push_back(
        {.head = &cache.views[number],
         .query = cache.query_of(number),
         .group = shape.group,
         .scale = cache.scale(),
         .begin = split * kSplitTokens,
         .end = std::min(entries, (split + 1) * kSplitTokens),
         .list = whole ? nullptr : cache.lists[number].data(),
         .partial =
             partials.data() + (number * static_cast<std::size_t>(splits) + static_cast<std::size_t>(split)) * size});
    return true;
  };
  for (int layer = 0; layer < cache.layers; ++layer) {
    if (pooled) {  // as the runner's work list: what reads everything by range over its heads, then the sets
      for (const bool whole : {true, false}) {
        for (int split = 0; split < splits; ++split) {
          for (int head = 0; head < shape.heads; ++head) {
            if ((all[static_cast<std::size_t>(head)] != 0) != whole) continue;
            if (add_call(layer, head, split)) made.items.emplace_back(made.calls.size() - 1, made.calls.size());
          }
        }
      }
    } else {
      for (int head = 0; head < shape.heads; ++head) {
        const std::size_t first = made.calls.size();
        for (int split = 0; split < splits; ++split) add_call(layer, head, split);
        made.items.emplace_back(first, made.calls.size());
      }
    }
    made.layer_ends.push_back(made.items.size());
  }
  for (std::size_t i = 0; i < made.layer_ends.front(); ++i) {
    for (std::size_t c = made.items[i].first; c < made.items[i].second; ++c) {
      const kernels::AttendItem& call = made.calls[c];
      made.row.bytes += (call.end - call.begin) * (2.0 * static_cast<double>(shape.format.read_bytes()) +
                                                   (call.list != nullptr ? sizeof(std::int32_t) : 0));
    }
  }
  return made;
}

/// Seconds a layer, threads meeting after each as they do between the nodes of a graph.
double run(const evaluate::KernelCache& cache, const Arrangement& arm, evaluate::ThreadTeam& team) {
  std::vector<std::atomic<std::size_t>> next(arm.layer_ends.size());
  for (std::size_t layer = 0; layer < next.size(); ++layer) next[layer] = layer == 0 ? 0 : arm.layer_ends[layer - 1];
  const auto start = Clock::now();
  team.run([&](int) {
    for (std::size_t layer = 0; layer < next.size(); ++layer) {
      const std::size_t end = arm.layer_ends[layer];
      // As attention::WorkList::take_ahead: one item more while enough are left for the others.
      const auto reserve = 2 * static_cast<std::size_t>(team.threads());
      for (std::size_t i = next[layer]++, after = end; i < end; i = after < end ? after : next[layer]++) {
        after = next[layer].load(std::memory_order_relaxed) + reserve < end ? next[layer]++ : end;
        for (std::size_t c = arm.items[i].first; c < arm.items[i].second; ++c) {
          kernels::AttendItem call = arm.calls[c];
          if (c + 1 < arm.items[i].second) {
            call.next = &arm.calls[c + 1];
          } else if (after < end) {
            call.next = &arm.calls[arm.items[after].first];
          }
          kernels::attend(cache.shape.format, call);
        }
      }
      team.meet();
    }
  });
  return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(next.size());
}

void check_arm(const evaluate::KernelCache& cache, const Arrangement& arm) {
  const std::size_t size = kernels::partial_floats(cache.shape.group, cache.shape.format.dim);
  for (const std::size_t c : {std::size_t{0}, arm.calls.size() - 1}) {
    std::vector<float> want(size);
    kernels::AttendItem call = arm.calls[c];
    call.partial = want.data();
    kernels::ref::attend(cache.shape.format, call);
    evaluate::expect_near({arm.calls[c].partial, size}, want, 2e-5, "attend");
  }
}

}  // namespace

std::vector<HeadOrderRow> run_head_order_cases(const evaluate::KernelShape& shape, int tokens,
                                               const std::vector<int>& retrieval, int threads, int repeats) {
  const evaluate::KernelCache cache(shape, tokens, evaluate::kGatheredRows);
  const auto splits = static_cast<std::size_t>((tokens + kSplitTokens - 1) / kSplitTokens);
  std::vector<float> partials(cache.views.size() * splits * kernels::partial_floats(shape.group, shape.format.dim));
  evaluate::ThreadTeam team(threads);
  evaluate::Stream stream;
  std::vector<HeadOrderRow> rows;
  for (const int count : retrieval) {
    check(count >= 1 && count < shape.heads, "some heads read everything and some a set");
    std::vector<Arrangement> arms;
    for (const bool pooled : {true, false}) {
      for (const bool by_kind : {false, true}) arms.push_back(arrange(cache, count, by_kind, pooled, partials));
    }
    for (int round = -1; round < repeats; ++round) {  // the first round warms up
      double unsorted = 0;
      for (Arrangement& arm : arms) {
        const double streamed = stream.bandwidth(team);
        const double taken = run(cache, arm, team);
        if (round < 0) {
          check_arm(cache, arm);
          continue;
        }
        if (&arm == &arms.front()) unsorted = taken;
        arm.layer_s.push_back(taken);
        arm.fraction.push_back(arm.row.bytes / streamed / taken);
        arm.over.push_back(taken / unsorted);
      }
    }
    for (Arrangement& arm : arms) {
      arm.row.layer_s = spread_of(arm.layer_s);
      arm.row.fraction = spread_of(arm.fraction);
      arm.row.over_unsorted = spread_of(arm.over);
      rows.push_back(arm.row);
    }
  }
  return rows;
}

}  // namespace glimpse::bench
