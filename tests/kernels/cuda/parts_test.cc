// Sets that are put together from parts, and heat, against plain loops.
#include "glimpse/kernels/cuda/parts.h"

#include <random>

#include "device_bed.h"
#include "glimpse/kernels/ref/rows.h"

namespace glimpse::kernels::cuda::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int32_t kBlock = 16;

class Parts : public CudaTest {};

/// Rows of scores and sets, on the host.
struct Lists {
  std::vector<float> scores;  ///< [R, H, stride]
  std::vector<std::int32_t> slots, count;
  std::int32_t capacity = 0;
};

std::int32_t units_of(std::int32_t slots) {
  return (slots + kBlock - 1) / kBlock;
}

float unit_score(const OperationsBed& bed, const Lists& lists, std::size_t query, std::int32_t unit,
                 std::int32_t slots) {
  float best = -kInfinity;
  for (std::int32_t slot = unit * kBlock; slot < std::min(slots, (unit + 1) * kBlock); ++slot) {
    best = std::max(best, lists.scores[query * bed.stride + static_cast<std::size_t>(slot)]);
  }
  return best;
}

/// Appends the best `wanted` units of one query head of a row as a set.
void add_list(const OperationsBed& bed, Lists& lists, std::size_t query, std::int32_t slots, std::int32_t wanted) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(units_of(slots)));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return unit_score(bed, lists, query, a, slots) > unit_score(bed, lists, query, b, slots);
  });
  const bool all = wanted >= units_of(slots);
  order.resize(static_cast<std::size_t>(std::min(wanted, units_of(slots))));
  std::sort(order.begin(), order.end());
  const std::size_t first = lists.slots.size();
  lists.slots.resize(first + static_cast<std::size_t>(lists.capacity), -1);
  std::size_t at = first;
  for (const std::int32_t unit : order) {
    for (std::int32_t slot = unit * kBlock; slot < std::min(slots, (unit + 1) * kBlock); ++slot) {
      lists.slots[at++] = slot;
    }
  }
  lists.count.push_back(all ? kEverything : static_cast<std::int32_t>(at - first));
}

/// A union of every row over its query heads, of which every third does not score.
struct Unions {
  std::vector<Union> unions;
  std::vector<std::int32_t> queries;
  Lists lists;
  std::vector<float> heat;
  std::size_t stride = 0;
  int most = 0;
};

Unions some_unions(OperationsBed& bed, std::int32_t wanted) {
  Unions made;
  const int heads = bed.of.kv_heads * bed.of.group;
  bed.fill(made.lists.scores, bed.queries() * bed.stride);
  for (float& score : made.lists.scores) score = std::round(score * 3);  // ties
  made.lists.capacity = static_cast<std::int32_t>(bed.stride);
  made.stride = (bed.stride + kBlock - 1) / kBlock + 5;
  bed.fill(made.heat, bed.rows() * made.stride);
  for (std::size_t row = 0; row < bed.rows(); ++row) {
    const std::int32_t slots = bed.seen(row);
    Union u;
    u.row = static_cast<std::int32_t>(row);
    u.head = static_cast<std::int32_t>(row) % bed.of.kv_heads;
    u.block = kBlock;
    u.head_units = std::min(1, units_of(slots) - 1);
    u.tail_units = std::max(u.head_units, units_of(slots) - 2);
    u.room = 1 + static_cast<std::int32_t>(row) % 7;
    u.first_list = static_cast<std::int32_t>(made.lists.count.size());
    u.first_query = static_cast<std::int32_t>(made.queries.size());
    u.wanted = wanted;
    u.heat = row % 3 == 2 ? -1 : u.row;
    u.keeps = u.row;
    for (int query = 0; query < heads; ++query) {
      if (query % 3 == 1) continue;
      add_list(bed, made.lists, row * static_cast<std::size_t>(heads) + static_cast<std::size_t>(query), slots, wanted);
      made.queries.push_back(query);
      ++u.lists;
    }
    made.most = std::max(made.most, u.lists * u.wanted);
    made.unions.push_back(u);
  }
  return made;
}

std::vector<float> want_of(const OperationsBed& bed, const Unions& all, const Union& u) {
  const std::int32_t slots = bed.seen(static_cast<std::size_t>(u.row));
  const auto heads = static_cast<std::size_t>(bed.of.kv_heads * bed.of.group);
  std::vector<float> values(static_cast<std::size_t>(units_of(slots)), -kInfinity);
  std::vector<std::pair<float, std::int32_t>> found;
  for (std::int32_t unit = 0; unit < units_of(slots); ++unit) {
    if (u.heat >= 0) {
      values[static_cast<std::size_t>(unit)] =
          all.heat[static_cast<std::size_t>(u.heat) * all.stride + static_cast<std::size_t>(unit)];
    }
    if (unit < u.head_units || unit >= u.tail_units) continue;
    bool listed = false;
    float best = -kInfinity;
    for (std::int32_t list = 0; list < u.lists; ++list) {
      const auto set = static_cast<std::size_t>(u.first_list + list);
      const auto from =
          all.lists.slots.begin() + static_cast<std::ptrdiff_t>(set * static_cast<std::size_t>(all.lists.capacity));
      listed = listed || all.lists.count[set] == kEverything ||
               std::find(from, from + all.lists.count[set], unit * kBlock) != from + all.lists.count[set];
      const auto query = static_cast<std::size_t>(all.queries[static_cast<std::size_t>(u.first_query + list)]);
      best = std::max(best, unit_score(bed, all.lists, static_cast<std::size_t>(u.row) * heads + query, unit, slots));
    }
    if (listed) found.emplace_back(-best, unit);
  }
  std::sort(found.begin(), found.end());
  found.resize(std::min(found.size(), static_cast<std::size_t>(u.room)));
  for (const auto& [score, unit] : found) values[static_cast<std::size_t>(unit)] = kInfinity;
  return values;
}

TEST_F(Parts, UnionsTakeTheBestOfTheirLists) {
  for (const OperationsCase& c :
       {OperationsCase{.name = "a batch", .kv_heads = 3, .group = 4, .lengths = {700, 90, 17, 1}},
        OperationsCase{.name = "long", .kv_heads = 8, .group = 4, .lengths = {9001}}}) {
    for (const std::int32_t wanted : {1, 5, 40}) {
      SCOPED_TRACE(c.name + ", " + std::to_string(wanted));
      OperationsBed bed(c, KvType::bf16, 5);
      const Unions all = some_unions(bed, wanted);
      const DeviceBed on(*stream_, bed);
      const Array<Union> unions(*stream_, all.unions);
      const Array<std::int32_t> queries(*stream_, all.queries);
      const Array<float> scores(*stream_, all.lists.scores), heat(*stream_, all.heat);
      const Array<std::int32_t> slots(*stream_, all.lists.slots), count(*stream_, all.lists.count);
      const std::size_t rows = bed.rows() * static_cast<std::size_t>(bed.of.kv_heads);
      const Array<float> values(*stream_, std::vector<float>(rows * all.stride, kNan));
      const Array<std::uint8_t> kept(*stream_, std::vector<std::uint8_t>(bed.rows() * all.stride, 7));
      UniteOp op{on.cache(), on.rows(), bed.of.group, unions.constant(), static_cast<int>(all.unions.size()), all.most};
      op.sets = {slots.pointer(), count.pointer(), all.lists.capacity, static_cast<int>(all.lists.count.size())};
      op.scores = {scores.pointer(), nullptr, bed.stride};
      op.queries = queries.constant();
      op.heat = heat.constant();
      op.kept = kept.pointer();
      op.values = values.pointer();
      op.stride = all.stride;
      unite(*stream_, op);
      const std::vector<float> got = values.values();
      const std::vector<std::uint8_t> remembered = kept.values();
      for (const Union& u : all.unions) {
        const std::vector<float> want = want_of(bed, all, u);
        const auto row = static_cast<std::size_t>(u.row);
        const std::size_t at =
            (row * static_cast<std::size_t>(bed.of.kv_heads) + static_cast<std::size_t>(u.head)) * all.stride;
        for (std::size_t i = 0; i < want.size(); ++i) {
          ASSERT_EQ(got[at + i], want[i]) << "row " << row << ", unit " << i;
          ASSERT_EQ(remembered[row * all.stride + i], want[i] == kInfinity ? 1 : 0) << "row " << row << ", unit " << i;
        }
      }
      // Another layer joins what they took.
      std::vector<Union> joined = all.unions;
      for (Union& u : joined) {
        u.joins = u.keeps;
        u.keeps = -1;
        u.lists = 0;
        u.heat = 0;
      }
      const Array<Union> others(*stream_, joined);
      op.unions = others.constant();
      op.most = 0;
      unite(*stream_, op);
      const std::vector<float> then = values.values();
      for (const Union& u : joined) {
        const auto row = static_cast<std::size_t>(u.row);
        const std::size_t at =
            (row * static_cast<std::size_t>(bed.of.kv_heads) + static_cast<std::size_t>(u.head)) * all.stride;
        for (std::size_t i = 0; i < static_cast<std::size_t>(units_of(bed.seen(row))); ++i) {
          ASSERT_EQ(then[at + i], remembered[row * all.stride + i] != 0 ? kInfinity : all.heat[i]);
        }
      }
    }
  }
}

/// Reads of everything, of nothing, and of sets of whole units.
std::vector<Read> some_reads(OperationsBed& bed, std::int32_t block) {
  std::vector<Read> reads(bed.row_heads.size());
  bed.capacity = static_cast<std::int32_t>(bed.stride);
  for (std::size_t i = 0; i < reads.size(); ++i) {
    reads[i].kind = i % 4 == 0 ? Read::Kind::everything : i % 7 == 6 ? Read::Kind::nothing : Read::Kind::sets;
    reads[i].set = static_cast<std::int32_t>(i);
    reads[i].scores = reads[i].kind == Read::Kind::nothing ? 0 : 1;
    const std::int32_t slots = bed.seen(static_cast<std::size_t>(bed.row_heads[i].row));
    bed.set_slots.resize((i + 1) * bed.stride, -1);
    std::int32_t count = 0;
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      if ((slot / block * 7 + static_cast<std::int32_t>(i)) % 3 == 0) {
        bed.set_slots[i * bed.stride + static_cast<std::size_t>(count++)] = slot;
      }
    }
    bed.set_count.push_back(i % 5 == 3 ? kEverything : count);
  }
  return reads;
}

/// The mean probability of each unit that a KV head of a row reads; NaN where it reads none of it.
std::vector<double> masses(const OperationsBed& bed, const std::vector<Read>& reads, std::size_t i,
                           const std::vector<float>& lse, std::int32_t block) {
  const RowHead at = bed.row_heads[i];
  const std::int32_t slots = bed.seen(static_cast<std::size_t>(at.row));
  const HeadView& view =
      bed.views[static_cast<std::size_t>(bed.sequence[static_cast<std::size_t>(at.row)] * bed.of.kv_heads + at.head)];
  std::vector<double> mass(static_cast<std::size_t>((slots + block - 1) / block), std::nan(""));
  if (reads[i].kind == Read::Kind::nothing) return mass;
  const std::int32_t count = bed.set_count[i];
  const bool all = reads[i].kind == Read::Kind::everything || count == kEverything;
  for (std::int32_t e = 0; e < (all ? slots : count); ++e) {
    const std::int32_t slot = all ? e : bed.set_slots[i * bed.stride + static_cast<std::size_t>(e)];
    double& unit = mass[static_cast<std::size_t>(slot / block)];
    if (std::isnan(unit)) unit = 0;
    for (int j = 0; j < bed.of.group; ++j) {
      const std::size_t query = i * static_cast<std::size_t>(bed.of.group) + static_cast<std::size_t>(j);
      const double score =
          0.125 * ref::dot(bed.q.data() + query * bed.dim(), ref::read_row(bed.format, view, view.k_plane, slot));
      unit += std::exp(score - static_cast<double>(lse[query])) / bed.of.group;
    }
  }
  return mass;
}

TEST_F(Parts, HeatIsTheMeanProbabilityOfABlock) {
  for (const std::int32_t block : {4, kBlock, 48}) {
    for (const KvType type : kTypes) {
      for (const OperationsCase& c :
           {OperationsCase{.name = "", .kv_heads = 3, .group = 4, .lengths = {700, 90, 17, 1}},
            OperationsCase{.name = "", .dim = 128, .kv_heads = 2, .group = 7, .lengths = {2000}},
            OperationsCase{.name = "", .dim = 256, .kv_heads = 1, .group = 16, .lengths = {40, 300}},
            OperationsCase{.name = "", .dim = 96, .kv_heads = 2, .group = 1, .lengths = {333}}}) {
        SCOPED_TRACE(block);
        OperationsBed bed(c, type, 6);
        const std::vector<Read> reads = some_reads(bed, block);
        const kernels::test::Scored left = attend_on_host(reference_, bed, reads).left;
        const DeviceBed on(*stream_, bed);
        std::vector<HeatRow> rows;
        for (std::size_t i = 0; i < reads.size(); ++i) {
          const RowHead at = bed.row_heads[i];
          rows.push_back({at.row, at.head, at.row, block});
        }
        const std::size_t stride = bed.stride / static_cast<std::size_t>(block) + 3,
                          kv_heads = static_cast<std::size_t>(c.kv_heads);
        const Array<HeatRow> heats(*stream_, rows);
        const Array<Read> device_reads(*stream_, reads);
        const Array<float> scores(*stream_, left.scores), lse(*stream_, left.lse);
        const Array<std::int32_t> slots(*stream_, bed.set_slots), count(*stream_, bed.set_count);
        Array<double> sums(*stream_, bed.rows() * kv_heads * stride), gains(*stream_, bed.rows() * stride);
        Array<std::int32_t> readers(*stream_, sums.size());
        sums.memory().fill(std::byte{0});
        readers.memory().fill(std::byte{0});
        HeatOp op{
            on.cache(), on.rows(), {scores.pointer(), lse.pointer(), bed.stride}, c.group, device_reads.constant()};
        op.sets = {slots.pointer(), count.pointer(), bed.capacity, static_cast<int>(bed.set_count.size())};
        op.heats = heats.constant();
        op.count = static_cast<int>(rows.size());
        op.most = static_cast<int>(stride);
        op.sums = sums.pointer();
        op.readers = readers.pointer();
        op.stride = stride;
        add_heat(*stream_, op);
        add_heat(*stream_, op);  // as another layer that reads the same
        heat_gains(*stream_, {sums.constant(), readers.constant(), gains.pointer(), static_cast<int>(bed.rows()),
                              c.kv_heads, stride});
        const std::vector<double> got = gains.values();
        for (std::size_t row = 0; row < bed.rows(); ++row) {
          std::vector<double> sum(stride, 0.0);
          std::vector<int> read(stride, 0);
          for (std::size_t head = 0; head < kv_heads; ++head) {
            const std::vector<double> mass = masses(bed, reads, row * kv_heads + head, left.lse, block);
            for (std::size_t unit = 0; unit < mass.size(); ++unit) {
              if (std::isnan(mass[unit])) continue;
              sum[unit] += mass[unit];
              ++read[unit];
            }
          }
          for (std::size_t unit = 0; unit < stride; ++unit) {
            const double want = read[unit] == 0 ? 0 : sum[unit] / read[unit];
            ASSERT_NEAR(got[row * stride + unit], want, 1e-6 + 1e-4 * want) << "row " << row << ", unit " << unit;
          }
        }
      }
    }
  }
}

/// To the host's bits.
TEST_F(Parts, HeatOfAStepThatTheHostHasNotSeen) {
  constexpr std::size_t kStride = 70, kGainsStride = 90;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> numbers(0, 3);
  std::vector<float> heat(3 * kStride);
  for (float& x : heat) x = static_cast<float>(numbers(random));
  std::vector<double> gains(2 * kGainsStride);
  for (double& x : gains) x = numbers(random);
  const std::vector<HeatStep> steps{{1, 70, 0.9}, {-1, 0, 0}, {0, 33, 0.37}};
  const Array<float> on_device(*stream_, heat);
  const Array<HeatStep> steps_on_device(*stream_, steps);
  const Array<double> gains_on_device(*stream_, gains);
  Array<float> out(*stream_, heat.size());
  step_heat(*stream_, {on_device.constant(), steps_on_device.constant(), gains_on_device.constant(), out.pointer(), 3,
                       kStride, kGainsStride});
  const std::vector<float> got = out.values();
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t unit = 0; unit < kStride; ++unit) {
      const float before = heat[row * kStride + unit];
      const HeatStep& step = steps[row];
      const double faded = step.decay * static_cast<double>(before);
      const bool gained = step.from >= 0 && unit < static_cast<std::size_t>(step.units);
      const float want =
          gained ? static_cast<float>(faded + gains[static_cast<std::size_t>(step.from) * kGainsStride + unit])
                 : before;
      ASSERT_EQ(got[row * kStride + unit], want) << row << ", " << unit;
    }
  }
}

TEST_F(Parts, ColumnsAreFolded) {
  constexpr std::size_t kColumns = 100, kStride = 9;
  constexpr int kHeads = 3;
  std::vector<float> columns(2 * kHeads * kColumns);
  for (std::size_t i = 0; i < columns.size(); ++i) columns[i] = static_cast<float>(i % 13);
  const Array<float> from(*stream_, columns);
  const Array<HeatPiece> pieces(*stream_, std::vector<HeatPiece>{{1, 97, 0, 16}, {0, 20, 1, 16}});
  Array<double> sums(*stream_, 2 * kHeads * kStride);
  sums.memory().fill(std::byte{0});
  fold_heat(*stream_, {from.constant(), pieces.constant(), 2, kHeads, static_cast<int>(kStride), kColumns, kStride,
                       sums.pointer()});
  const std::vector<double> got = sums.values();
  for (std::size_t place = 0; place < 2; ++place) {
    for (std::size_t head = 0; head < kHeads; ++head) {
      for (std::size_t unit = 0; unit < kStride; ++unit) {
        double want = 0;
        for (std::size_t slot = unit * 16; slot < std::min<std::size_t>(place == 0 ? 97 : 20, unit * 16 + 16); ++slot) {
          want += static_cast<double>(columns[((1 - place) * kHeads + head) * kColumns + slot]);
        }
        EXPECT_EQ(got[(place * kHeads + head) * kStride + unit], want);
      }
    }
  }
}

TEST_F(Parts, RowsAreShifted) {
  const std::vector<float> lse{1, 2, 3, 4, 5, 6}, shift{0.5F, -1};
  const Array<float> from(*stream_, lse), by(*stream_, shift), out(*stream_, lse.size());
  shift_rows(*stream_, {from.constant(), by.constant(), out.pointer(), 2, 3});
  EXPECT_EQ(out.values(), (std::vector<float>{0.5F, 1.5F, 2.5F, 5, 6, 7}));
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
