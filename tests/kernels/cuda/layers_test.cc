// The parts of a layer beside products and attention on a GPU, against plain loops in double precision.
#include "glimpse/kernels/cuda/layers.h"

#include "device_bed.h"
#include "glimpse/base/dtype.h"
#include "glimpse/kernels/ref/rows.h"

namespace glimpse::kernels::cuda::test {
namespace {

class Layers : public CudaTest {
 protected:
  std::vector<float> normals(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& x : values) x = normal(random_);
    return values;
  }
  std::vector<Bf16> narrowed(const std::vector<float>& values) {
    std::vector<Bf16> bits(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) bits[i] = bf16_from_float(values[i]);
    return bits;
  }
  static std::vector<float> widened(const std::vector<Bf16>& bits) {
    std::vector<float> values(bits.size());
    for (std::size_t i = 0; i < bits.size(); ++i) values[i] = float_from_bf16(bits[i]);
    return values;
  }
  /// Equal but for the rounding to bf16 of a value that is a little off.
  static void expect_rounded(const std::vector<float>& got, const std::vector<double>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], std::abs(want[i]) * 0x1.02p-8 + 1e-6) << i;
  }

  std::mt19937 random_{5};
};

TEST_F(Layers, EmbedTakesRows) {
  const std::vector<float> table = normals(50 * 72);
  const std::vector<std::int32_t> tokens{3, 49, 0, 3}, said{3, -2, -1, -3};
  const std::vector<Standing> standings{{-1, 0}, {49, 1}, {3, 2}};
  const Array<Bf16> bits(*stream_, narrowed(table));
  const Array<std::int32_t> which(*stream_, said);
  const Array<Standing> there(*stream_, standings);
  const Array<float> out(*stream_, std::vector<float>(4 * 72, kNan));
  embed(*stream_, {bits.constant(), {which.constant(), there.constant()}, out.pointer(), 4, 72});
  const std::vector<float> rounded = widened(narrowed(table));
  const std::vector<float> got = out.values();
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], rounded[static_cast<std::size_t>(tokens[i / 72]) * 72 + i % 72]) << i;
  }
}

TEST_F(Layers, NormaliseAddsAndScales) {
  for (const int width : {8, 72, 576, 4096, 5120, 8192, 16384}) {
    for (const bool add : {false, true}) {
      SCOPED_TRACE(std::to_string(width) + (add ? ", adds" : ""));
      const auto size = static_cast<std::size_t>(width);
      const std::vector<float> x = normals(3 * size), delta = normals(3 * size), weight = normals(size);
      const Array<float> residual(*stream_, x), added(*stream_, delta), scales(*stream_, weight);
      const Array<Bf16> out(*stream_, 3 * size);
      NormaliseOp op{residual.pointer(), {}, scales.constant(), out.pointer(), 3, width, 1e-5F};
      if (add) op.delta = added.constant();
      normalise(*stream_, op);
      const std::vector<float> sums = residual.values();
      std::vector<double> want(3 * size);
      for (std::size_t row = 0; row < 3; ++row) {
        double squares = 0;
        for (std::size_t i = row * size; i < (row + 1) * size; ++i) {
          ASSERT_EQ(sums[i], add ? x[i] + delta[i] : x[i]) << i;
          squares += static_cast<double>(sums[i]) * sums[i];
        }
        for (std::size_t i = row * size; i < (row + 1) * size; ++i) {
          want[i] = sums[i] / std::sqrt(squares / width + 1e-5) * weight[i - row * size];
        }
      }
      expect_rounded(widened(out.values()), want);
    }
  }
}

TEST_F(Layers, RowsMoveDownOverOthers) {
  for (const int bytes : {4, 12, 128, 192, 512}) {
    SCOPED_TRACE(bytes);
    const auto row = static_cast<std::size_t>(bytes);
    const std::size_t slots = 3000;
    std::vector<std::byte> memory(slots * row);
    for (std::byte& x : memory) x = static_cast<std::byte>(random_());
    // Slots lie anywhere; those that stay move together in the order of their numbers.
    std::vector<std::size_t> where(slots);
    std::iota(where.begin(), where.end(), std::size_t{0});
    std::shuffle(where.begin(), where.end(), random_);
    std::vector<RowMove> moves;
    for (std::size_t slot = 0; slot < slots; ++slot) {
      if (random_() % 4 != 0) moves.push_back({where[slot] * row, where[moves.size()] * row});
    }
    std::vector<std::byte> want = memory;
    for (const RowMove& move : moves) {
      if (move.from != move.to) std::memcpy(want.data() + move.to, want.data() + move.from, row);
    }
    const Array<std::byte> device(*stream_, memory);
    const Array<RowMove> rows(*stream_, moves);
    move_rows(*stream_, {device.pointer(), rows.constant(), static_cast<int>(moves.size()), bytes});
    EXPECT_TRUE(device.values() == want);
  }
}

TEST_F(CudaTest, PagesGoToTheHostAndComeBack) {
  constexpr std::size_t kPages = 300;
  for (const std::size_t bytes : {std::size_t{16}, std::size_t{4096}, std::size_t{8208}}) {
    SCOPED_TRACE(bytes);
    std::mt19937 random(3);
    std::vector<std::byte> k(kPages * bytes), v(kPages * bytes);
    for (std::vector<std::byte>* plane : {&k, &v}) {
      for (std::byte& x : *plane) x = static_cast<std::byte>(random());
    }
    const Array<std::byte> on_k(*stream_, k), on_v(*stream_, v);
    const Pinned host(*stream_, kPages * 2 * bytes);
    std::vector<PageCopy> pages;
    for (std::size_t i = 0; i < kPages; ++i) pages.push_back({i * 7 % kPages * bytes, host.raw() + i * 2 * bytes});
    const Array<PageCopy> on_pages(*stream_, pages);
    const auto copy = [&](const Array<std::byte>& to_k, const Array<std::byte>& to_v, bool back) {
      copy_pages(*stream_, {to_k.pointer(), to_v.pointer(), on_pages.constant(), static_cast<int>(kPages),
                            static_cast<int>(bytes), back});
      stream_->synchronize();
    };
    copy(on_k, on_v, false);
    for (const PageCopy& page : pages) {
      ASSERT_EQ(std::memcmp(page.copy, k.data() + page.at, bytes), 0);
      ASSERT_EQ(std::memcmp(page.copy + bytes, v.data() + page.at, bytes), 0);
    }
    const Array<std::byte> other_k(*stream_, kPages * bytes), other_v(*stream_, kPages * bytes);
    copy(other_k, other_v, true);
    EXPECT_TRUE(other_k.values() == k);
    EXPECT_TRUE(other_v.values() == v);
  }
}

/// One head's row after bias, norm and rotation.
std::vector<double> finished(const float* from, const float* bias, const float* norm, const float* cos_sin,
                             const QkvOp& op, int dim) {
  std::vector<double> x(static_cast<std::size_t>(dim));
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = from[i] + (bias == nullptr ? 0.0 : bias[i]);
    squares += x[i] * x[i];
  }
  for (std::size_t i = 0; i < x.size() && norm != nullptr; ++i) {
    x[i] *= norm[i] / std::sqrt(squares / dim + static_cast<double>(op.epsilon));
  }
  for (int i = 0; i < op.rotated / 2 && cos_sin != nullptr; ++i) {
    const auto a = static_cast<std::size_t>(op.neox ? i : 2 * i);
    const auto b = static_cast<std::size_t>(op.neox ? i + op.rotated / 2 : 2 * i + 1);
    const double first = x[a], second = x[b];
    x[a] = first * cos_sin[2 * i] - second * cos_sin[2 * i + 1];
    x[b] = first * cos_sin[2 * i + 1] + second * cos_sin[2 * i];
  }
  return x;
}

/// Where in a plane a row's own K and V lie.
/// The newest slot of a row's KV head.
struct OwnSlot {
  const HeadView& view;
  std::int32_t slot;
};
OwnSlot own_slot(const OperationsBed& bed, std::size_t row, std::size_t kv_head) {
  const std::size_t heads = static_cast<std::size_t>(bed.of.kv_heads);
  return {bed.views[static_cast<std::size_t>(bed.sequence[row]) * heads + kv_head], bed.seen(row) - 1};
}

/// Makes a row of `to` that of `from`, two copies of one plane.
void copy_row(const KvFormat& format, const OwnSlot& at, std::vector<std::byte>& from, std::vector<std::byte>& to) {
  const auto copy = [&](std::ptrdiff_t place, std::size_t bytes) {
    std::copy_n(from.begin() + place, bytes, to.begin() + place);
  };
  copy(at.view.row_of(from.data(), at.slot, format) - from.data(), format.row_bytes());
  if (format.type != KvType::q8_0) return;
  const std::byte* const scales = at.view.page_of(from.data(), at.slot, format) + format.scale_offset();
  copy(scales - from.data() + at.slot % kPageTokens * std::ptrdiff_t{sizeof(float)}, sizeof(float));
}

/// What the cache's type loses of a value, of a row whose largest is `largest`.
double rounding_of(KvType type, double value, double largest) {
  if (type == KvType::q8_0) return 0.5 / 127 * 1.001 * largest;
  return std::abs(value) * (type == KvType::bf16 ? 0x1.04p-8 : 0x1.04p-11);
}

struct QkvCase {
  int group, kv_heads, dim, rotated;
  bool neox, bias, norm;
  KvType type = KvType::bf16;
};

TEST_F(Layers, QkvIsSplitAndFinished) {
  for (const QkvCase& c :
       {QkvCase{3, 2, 64, 64, false, false, false}, QkvCase{3, 2, 64, 64, true, true, false, KvType::f16},
        QkvCase{1, 8, 128, 128, true, false, true}, QkvCase{4, 1, 96, 48, false, true, true},
        QkvCase{5, 1, 256, 64, true, true, true}, QkvCase{3, 2, 64, 64, false, true, false, KvType::q8_0},
        QkvCase{2, 3, 128, 128, true, false, true, KvType::q8_0}, QkvCase{4, 1, 96, 48, true, true, true, KvType::q8_0},
        QkvCase{1, 2, 256, 64, true, false, true, KvType::q8_0}}) {
    SCOPED_TRACE(std::to_string(c.dim) + ", rotated " + std::to_string(c.rotated));
    const OperationsBed bed({.name = "qkv",
                             .dim = c.dim,
                             .kv_heads = c.kv_heads,
                             .group = c.group,
                             .lengths = {100, 3, 17},
                             .behind = {1, 2}},
                            c.type, 3);
    const DeviceBed device(*stream_, bed);
    const std::size_t rows = bed.rows(), dim = bed.dim(), kv_heads = static_cast<std::size_t>(c.kv_heads),
                      heads = kv_heads * static_cast<std::size_t>(c.group), all = heads + 2 * kv_heads;
    const std::vector<float> qkv = normals(rows * all * dim), biases = normals(all * dim), norms = normals(2 * dim),
                             angles = normals(rows * static_cast<std::size_t>(c.rotated));
    const Array<float> from(*stream_, qkv), bias(*stream_, biases), norm(*stream_, norms), turns(*stream_, angles);
    const Array<float> q(*stream_, rows * heads * dim);
    QkvOp op{.qkv = from.constant(), .cos_sin = turns.constant(), .q = q.pointer()};
    op.cache = device.cache();
    op.rows = device.rows();
    op.heads = static_cast<int>(heads);
    op.rotated = c.rotated;
    op.neox = c.neox;
    op.epsilon = 1e-6F;
    if (c.bias) {
      op.q_bias = bias.constant();
      op.k_bias = bias.constant().raw() + heads * dim;
      op.v_bias = bias.constant().raw() + (heads + kv_heads) * dim;
    }
    if (c.norm) {
      op.q_norm = norm.constant();
      op.k_norm = norm.constant().raw() + dim;
    }
    split_qkv(*stream_, op);
    const std::vector<float> got_q = q.values();
    std::vector<std::byte> k = device.k_bytes(), v = device.v_bytes(), untouched_k = bed.k_plane,
                           untouched_v = bed.v_plane;
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t part = 0; part < all; ++part) {
        const bool is_q = part < heads, is_k = !is_q && part < heads + kv_heads;
        const std::vector<double> want =
            finished(qkv.data() + (row * all + part) * dim, c.bias ? biases.data() + part * dim : nullptr,
                     c.norm && (is_q || is_k) ? norms.data() + (is_q ? 0 : dim) : nullptr,
                     is_q || is_k ? angles.data() + row * static_cast<std::size_t>(c.rotated) : nullptr, op, c.dim);
        if (is_q) {
          const float* const got = got_q.data() + (row * heads + part) * dim;
          for (std::size_t i = 0; i < dim; ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << row << " " << part << " " << i;
          continue;
        }
        std::vector<std::byte>& plane = is_k ? k : v;
        const OwnSlot at = own_slot(bed, row, (part - heads) % kv_heads);
        const std::vector<double> got = ref::read_row(bed.format, at.view, plane.data(), at.slot);
        double largest = 0;
        for (const double x : want) largest = std::max(largest, std::abs(x));
        for (std::size_t i = 0; i < dim; ++i) {
          ASSERT_NEAR(got[i], want[i], rounding_of(c.type, want[i], largest) + 2e-5) << row << " " << part << " " << i;
        }
        copy_row(bed.format, at, plane, is_k ? untouched_k : untouched_v);
      }
    }
    EXPECT_TRUE(k == untouched_k) << "written beside the rows' own places";
    EXPECT_TRUE(v == untouched_v) << "written beside the rows' own places";
  }
}

TEST_F(Layers, GateRowsAndNarrow) {
  const std::vector<float> both = normals(3 * 2 * 40);
  const Array<float> from(*stream_, both);
  const Array<Bf16> out(*stream_, 3 * 40);
  gate(*stream_, {from.constant(), out.pointer(), 3, 40});
  std::vector<double> want(3 * 40);
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double x = both[i / 40 * 80 + i % 40];
    want[i] = x / (1 + std::exp(-x)) * both[i / 40 * 80 + 40 + i % 40];
  }
  expect_rounded(widened(out.values()), want);
  gate(*stream_, {from.constant(), out.pointer(), 3, 40, true});
  for (std::size_t i = 0; i < want.size(); ++i) {
    const std::size_t at = i / 40 * 80 + i % 40 / 8 * 16 + i % 8;
    want[i] = both[at] / (1 + std::exp(-static_cast<double>(both[at]))) * both[at + 8];
  }
  expect_rounded(widened(out.values()), want);

  const Array<Bf16> rounded(*stream_, both.size());
  narrow(*stream_, {from.constant(), rounded.pointer(), both.size()});
  EXPECT_EQ(rounded.values(), narrowed(both));

  const Array<std::int32_t> which(*stream_, std::vector<std::int32_t>{5, 0});
  const Array<float> taken(*stream_, std::vector<float>(2 * 40, kNan));
  take_rows(*stream_, {from.constant(), which.constant(), taken.pointer(), 2, 40});
  std::vector<float> rows(both.begin() + 200, both.begin() + 240);
  rows.insert(rows.end(), both.begin(), both.begin() + 40);
  EXPECT_EQ(taken.values(), rows);
}

TEST_F(Layers, WritesGoToTheirPlaces) {
  const Array<std::uint32_t> table(*stream_, std::vector<std::uint32_t>(1000, 7));
  std::vector<std::uint32_t> want(1000, 7);
  std::vector<Write> writes;
  for (std::uint32_t i = 0; i < 300; ++i) {
    writes.push_back({table.pointer().raw() + i * 3, i});
    want[i * 3] = i;
  }
  const Array<Write> list(*stream_, writes);
  write(*stream_, {list.constant(), 300});
  EXPECT_EQ(table.values(), want);
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
