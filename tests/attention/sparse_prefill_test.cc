// Kascade's sparse prefill against the transcription: what each tile reads, and what comes out, layer by layer. Sets of
// a prompt are not shown to anybody, so two of the reuse layers tell them by their output.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/policies/policy.h"
#include "tests/reference/methods.h"

namespace glimpse::attention {
namespace {

constexpr int kLayers = 6, kKvHeads = 3, kDim = 32;
constexpr int kAnchorOf[kLayers] = {0, 0, 0, 3, 3, 3};
/// The first layer behind each anchor tells: it keeps the heads, and gives all that it reads the same weight. Token i
/// has the value 2^(i / d) in dimension i % d, so the sums over what is read are the set in bits.
constexpr bool tells(int layer) {
  return layer == 1 || layer == 4;
}
constexpr int kBits = 16;  ///< of a sum that floats hold with room to spare
const std::vector<int> kHeadMap{0, 1, 2, 0, 1, 2, 2, 0, 1, 0, 1, 2, 0, 1, 2, 1, 1, 0};

struct Case {
  std::string name;
  int group;
  std::string budget;       ///< as the user writes it; empty: the method's
  methods::Tile rule;       ///< what that means
  int tile;                 ///< tokens
  std::vector<int> passes;  ///< rows; the last is a prompt of its own
  std::map<std::string, std::string> extra = {};
};

void PrintTo(const Case& row, std::ostream* out) {
  *out << row.name;
}

plan::Plan kascade_plan(const Case& row) {
  const plan::ModelShape shape{"llama", "", kLayers, row.group * kKvHeads, kKvHeads, kDim, 4096};
  plan::Profile profile;
  profile.model = shape;
  profile.kascade = {{0, 3}, kHeadMap};
  policies::PolicyOptions options;
  options.profile = &profile;
  options.extra = row.extra;
  if (!row.budget.empty()) options.budget = plan::parse_budget(row.budget);
  plan::Plan plan = policies::find_policy("kascade").make(shape, options);
  plan::validate(plan);
  return plan;
}

class Prompt {
 public:
  explicit Prompt(const Case& row)
      : row_(row),
        heads_(row.group * kKvHeads),
        plan_(kascade_plan(row)),
        program_(plan_),
        cache_({kLayers, kKvHeads, {KvType::f32, kDim}, 4096}),
        runner_({kLayers, heads_, kKvHeads, kDim, 1, nullptr}, cache_),
        state_(plan_),
        sequence_(cache_.create()) {}

  int sparse_tiles = 0, dense_tiles = 0;  ///< of those checked

  /// A pass over made-up rows, each of whose tiles is checked.
  void run(int rows, std::int64_t prompt_end) {
    SequenceRows entry{
        .sequence = sequence_, .program = &program_, .state = &state_, .rows = rows, .kind = PassKind::prompt};
    entry.position = cache_.length(sequence_);
    entry.prompt_end = prompt_end;
    ASSERT_LE(entry.position + rows, kBits * kDim);
    runner_.begin({&entry, 1});
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kKvHeads; ++head) {
        const std::vector<float> k = made(rows, 1);
        const std::vector<float> v = tells(layer) ? bits(entry.position, rows) : made(rows, 1);
        take(keys_[layer][head], k);
        take(values_[layer][head], v);
        runner_.append({layer, head, 0, 0, rows, k.data(), v.data(), kDim});
      }
      // Queries this large make probabilities so uneven that one wrong member shows.
      const std::vector<float> q = made(rows * heads_, tells(layer) ? 0.0F : 3.0F);
      std::vector<float> out(q.size(), NAN);
      runner_.appended(layer, 1);
      if (runner_.needs_select(layer)) runner_.select(layer, q.data(), 0, 1);
      runner_.attend(layer, q.data(), out.data(), 0, 1);
      queries_[layer].clear();
      outputs_[layer].clear();
      take(queries_[layer], q);
      take(outputs_[layer], out);
    }
    runner_.end();
    for (int first = 0; first < rows; first += row_.tile) {
      check_tile(entry.position, first, std::min(rows, first + row_.tile));
      if (testing::Test::HasFatalFailure()) return;
    }
  }

 private:
  std::vector<float> made(int rows, float deviation) {
    std::vector<float> values(static_cast<std::size_t>(rows) * kDim);
    for (float& x : values) x = deviation * normal_(random_);
    return values;
  }
  static std::vector<float> bits(std::int64_t position, int rows) {
    std::vector<float> values(static_cast<std::size_t>(rows) * kDim);
    for (int row = 0; row < rows; ++row) {
      const auto token = static_cast<int>(position) + row;
      values[static_cast<std::size_t>(row * kDim + token % kDim)] = static_cast<float>(1 << token / kDim);
    }
    return values;
  }
  static void take(methods::Rows& to, const std::vector<float>& rows) {
    for (auto at = rows.begin(); at != rows.end(); at += kDim) to.emplace_back(at, at + kDim);
  }
  const methods::Row& of(const methods::Rows& rows, int row, int head) const {
    return rows[static_cast<std::size_t>(row * heads_ + head)];
  }
  bool per_layer() const { return row_.extra.contains("set"); }

  /// What a row of a layer that tells has read, if these were `count` tokens.
  static methods::Set told(const methods::Row& out, std::int64_t count) {
    methods::Set set;
    for (std::int32_t token = 0; token < kBits * kDim; ++token) {
      const long sum = std::lround(out[static_cast<std::size_t>(token % kDim)] * static_cast<double>(count));
      if ((sum >> token / kDim & 1) != 0) set.push_back(token);
    }
    return set;
  }

  /// The transcription's set of the tile of rows [first, end) at `tile.start`; `told` is the guide.
  methods::Set chosen(methods::Tile tile, const methods::Set& told, std::pair<int, int> first_end,
                      std::pair<int, int> layer_head) const {
    const auto [layer, head] = layer_head;
    for (int row = first_end.first; row < first_end.second; ++row) {
      tile.queries.emplace_back();
      for (int j = 0; j < (per_layer() ? heads_ : row_.group); ++j) {
        tile.queries.back().push_back(of(queries_[layer], row, per_layer() ? j : head * row_.group + j));
        if (per_layer()) spread(tile.queries.back().back(), j / row_.group);
      }
    }
    if (!per_layer()) return methods::tile_set(tile, keys_[layer][head], told);
    methods::Rows beside = keys_[layer][0];
    for (int other = 1; other < kKvHeads; ++other) {
      for (std::size_t i = 0; i < beside.size(); ++i) {
        beside[i].insert(beside[i].end(), keys_[layer][other][i].begin(), keys_[layer][other][i].end());
      }
    }
    return methods::tile_set(tile, beside, told);
  }
  /// The keys of all heads lie beside each other; a query sees its own head's, at the scale of the longer rows.
  static void spread(methods::Row& query, int head) {
    methods::Row wide(std::size_t{kKvHeads} * kDim);
    for (std::size_t i = 0; i < kDim; ++i) {
      wide[static_cast<std::size_t>(head) * kDim + i] = query[i] * std::sqrt(double{kKvHeads});
    }
    query = wide;
  }

  methods::Row attended(const methods::Row& query, std::pair<int, int> layer_head, const methods::Set& set) const {
    const methods::Rows& keys = keys_[layer_head.first][layer_head.second];
    const methods::Rows& values = values_[layer_head.first][layer_head.second];
    methods::Row out(kDim);
    double sum = 0;
    for (const std::int32_t token : set) {
      const auto at = static_cast<std::size_t>(token);
      const double weight = std::exp(methods::dot(query, keys[at]) / std::sqrt(double{kDim}));
      sum += weight;
      for (std::size_t i = 0; i < kDim; ++i) out[i] += weight * values[at][i];
    }
    for (double& x : out) x /= sum;
    return out;
  }

  /// Rows [first, end) of the pass that began at `position`.
  void check_tile(std::int64_t position, int first, int end) {
    methods::Tile tile = row_.rule;
    tile.start = position + first;
    const std::int64_t count = std::min(tile.start, methods::tile_budget(tile));
    ++(count < tile.start ? sparse_tiles : dense_tiles);
    methods::Set sets[kLayers][kKvHeads];  // of the anchors
    for (const int anchor : {0, 3}) {
      for (int head = 0; head < kKvHeads; ++head) {
        methods::Set set = told(of(outputs_[anchor + 1], first, head * row_.group), count + 1);
        ASSERT_FALSE(set.empty());
        ASSERT_EQ(set.back(), tile.start) << "a tile's first row reads nothing of the tile but itself";
        set.pop_back();
        ASSERT_EQ(set, chosen(tile, set, {first, end}, {anchor, head}))
            << "tile at " << tile.start << ", layer " << anchor << ", head " << head;
        sets[anchor][head] = set;
      }
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kKvHeads; ++head) {
        const int slot = kHeadMap[static_cast<std::size_t>(layer * kKvHeads + head)];
        methods::Set read = sets[kAnchorOf[layer]][slot];
        if (layer == 0) {
          read.resize(static_cast<std::size_t>(tile.start));
          std::iota(read.begin(), read.end(), 0);
        }
        for (int row = first; row < end; ++row) {
          read.push_back(static_cast<std::int32_t>(position + row));
          check_row(row, {layer, head}, read);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }

  void check_row(int row, std::pair<int, int> layer_head, const methods::Set& read) const {
    const auto [layer, head] = layer_head;
    for (int j = head * row_.group; j < (head + 1) * row_.group; ++j) {
      const methods::Row& out = of(outputs_[layer], row, j);
      const std::string where = fmt::format("token {}, layer {}, query head {}", read.back(), layer, j);
      if (tells(layer)) {
        ASSERT_EQ(told(out, static_cast<std::int64_t>(read.size())), read) << where;
        continue;
      }
      const methods::Row expected = attended(of(queries_[layer], row, j), layer_head, read);
      for (std::size_t i = 0; i < kDim; ++i) ASSERT_NEAR(out[i], expected[i], 3e-5) << where;
    }
  }

  Case row_;
  int heads_;
  plan::Plan plan_;
  Program program_;
  kv::Cache cache_;
  Runner runner_;
  SequenceState state_;
  kv::SequenceId sequence_;
  methods::Rows keys_[kLayers][kKvHeads], values_[kLayers][kKvHeads];  ///< of all tokens
  methods::Rows queries_[kLayers], outputs_[kLayers];                  ///< [row * heads + head] of the pass
  std::mt19937 random_{11};
  std::normal_distribution<float> normal_;
};

class SparsePrefill : public testing::TestWithParam<Case> {};

TEST_P(SparsePrefill, ReadsTheTranscriptionsSetsAndItsOwnTile) {
  const Case& row = GetParam();
  Prompt prompt(row);
  std::int64_t end = 0;
  for (std::size_t pass = 0; pass + 1 < row.passes.size(); ++pass) end += row.passes[pass];
  for (std::size_t pass = 0; pass + 1 < row.passes.size(); ++pass) {
    prompt.run(row.passes[pass], end);
    if (HasFatalFailure()) return;
  }
  prompt.run(row.passes.back(), end + row.passes.back());
  EXPECT_GE(prompt.sparse_tiles, 3);
  EXPECT_GE(prompt.dense_tiles, 1);
}

// Passes of whole tiles; then a ragged one, that ends a prompt, and a prompt that goes on behind it.
INSTANTIATE_TEST_SUITE_P(
    Kascade, SparsePrefill,
    testing::Values(
        Case{"share_of_the_context", 3, "20%,min=16", {.share = 0.2, .least = 16}, 42, {168, 168, 101, 43}},
        Case{"at_least_128", 4, "", {.share = 0.1, .least = 128}, 32, {128, 64, 81, 33}},
        Case{"fixed", 4, "48", {.fixed = 48}, 32, {128, 96, 65, 33}},
        Case{"all_heads", 3, "20%,min=16", {.share = 0.2, .least = 16}, 42, {84, 84, 60, 43}, {{"set", "layer"}}},
        Case{"tiles_of_several_items", 4, "60", {.fixed = 60}, 80, {160, 90, 81}, {{"tile", "320"}}}),
    [](const testing::TestParamInfo<Case>& row) { return row.param.name; });

}  // namespace
}  // namespace glimpse::attention
