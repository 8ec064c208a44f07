// Keys before RoPE, their X^T X and their products with directions, against plain loops in double.
#include "glimpse/kernels/cuda/factors.h"

#include "device_bed.h"
#include "glimpse/base/dtype.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/ref/rows.h"

namespace glimpse::kernels::cuda::test {
namespace {

class FactorsTest : public CudaTest {};

/// A row that was turned by `angles`, back: what turning the result gives is the row.
void expect_turned_back(const std::vector<double>& key, const float* got, const float* angles, int turned, bool neox) {
  for (int i = 0; i < turned / 2; ++i) {
    const std::size_t a = size(neox ? i : 2 * i), b = size(neox ? i + turned / 2 : 2 * i + 1);
    const double cosine = angles[2 * i], sine = angles[2 * i + 1], x = got[a], y = got[b];
    ASSERT_NEAR(x * cosine - y * sine, key[a], 1e-5 * (1 + std::abs(key[a]) + std::abs(key[b])));
    ASSERT_NEAR(x * sine + y * cosine, key[b], 1e-5 * (1 + std::abs(key[a]) + std::abs(key[b])));
  }
  for (std::size_t d = size(turned); d < key.size(); ++d) ASSERT_EQ(got[d], static_cast<float>(key[d]));
}

TEST_F(FactorsTest, KeysAreTurnedBack) {
  Stream& stream = *stream_;
  each_case([&](OperationsBed& bed) {
    if (!bed.positions.empty()) return;  // heads that freed tokens have no factors
    const DeviceBed on(stream, bed);
    const auto heads = bed.of.kv_heads;
    const int turned = bed.of.dim - 16;
    const bool neox = bed.below(2) == 0;
    const std::int32_t slots = bed.views.front().slots, first = slots / 3, count = slots - first;
    std::vector<float> angles;
    for (std::int64_t i = 0; i < std::int64_t{slots} * turned / 2; ++i) {
      angles.push_back(1.25F * static_cast<float>(std::cos(0.1 * static_cast<double>(i))));
      angles.push_back(1.25F * static_cast<float>(std::sin(0.1 * static_cast<double>(i))));
    }
    const Array<float> device_angles(stream, angles), rows(stream, size(count) * size(heads) * bed.dim());
    keys_before_rope(stream, {.format = bed.format,
                              .heads = on.cache().views,
                              .head_count = heads,
                              .first = first,
                              .count = count,
                              .angles = device_angles.constant(),
                              .turned = turned,
                              .neox = neox,
                              .rows = rows.pointer()});
    const std::vector<float> got = rows.values();
    for (std::int32_t t = 0; t < count; ++t) {
      for (std::size_t head = 0; head < size(heads); ++head) {
        const HeadView& view = bed.views[head];
        expect_turned_back(ref::read_row(bed.format, view, view.k_plane, first + t),
                           got.data() + (size(t) * size(heads) + head) * bed.dim(),
                           angles.data() + size(first + t) * size(turned), turned, neox);
      }
    }
  });
}

struct Shape {
  std::int32_t count;
  int width, columns;
};

TEST_F(FactorsTest, GramsAndProjectionsAreTheirSums) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (const Shape& of : {Shape{1, 64, 1}, Shape{37, 96, 24}, Shape{500, 256, 160}, Shape{1000, 320, 70}}) {
    SCOPED_TRACE(of.width);
    const std::size_t width = size(of.width), columns = size(of.columns), count = size(of.count);
    std::vector<float> rows(count * width), directions(width * columns);
    for (float& x : rows) x = normal(random);
    for (float& x : directions) x = normal(random) / std::sqrt(static_cast<float>(of.width));
    const Array<float> device_rows(*stream_, rows), parts(*stream_, gram_floats(of.width));
    const Array<float> device_directions(*stream_, directions);
    Array<double> matrix(*stream_, width * width);
    matrix.memory().fill(std::byte{0});
    const GramOp op{device_rows.constant(), of.count, of.width, parts.pointer(), matrix.pointer()};
    gram(*stream_, op);
    const std::vector<double> once = matrix.values();
    gram(*stream_, op);  // it adds
    const std::vector<double> twice = matrix.values();
    for (std::size_t i = 0; i < width; ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        double sum = 0;
        for (std::size_t t = 0; t < count; ++t)
          sum += static_cast<double>(rows[t * width + i]) * static_cast<double>(rows[t * width + j]);
        ASSERT_NEAR(once[i * width + j], sum, 1e-5 * (std::sqrt(static_cast<double>(of.count)) + std::abs(sum)));
        ASSERT_EQ(twice[i * width + j], 2 * once[i * width + j]);
        ASSERT_EQ(once[i * width + j], once[j * width + i]);
      }
    }
    for (const KvType type : {KvType::bf16, KvType::f16}) {
      const Array<std::uint16_t> out(*stream_, count * columns);
      project(*stream_, {device_rows.constant(), of.count, of.width, of.columns, device_directions.constant(), type,
                         out.pointer()});
      const std::vector<std::uint16_t> got = out.values();
      for (std::size_t t = 0; t < count; ++t) {
        for (std::size_t c = 0; c < columns; ++c) {
          double sum = 0;
          for (std::size_t i = 0; i < width; ++i)
            sum += static_cast<double>(rows[t * width + i]) * static_cast<double>(directions[i * columns + c]);
          const std::uint16_t bits = got[t * columns + c];
          const auto value = static_cast<double>(type == KvType::f16 ? float_from_f16(bits) : float_from_bf16(bits));
          ASSERT_NEAR(value, sum, (type == KvType::f16 ? 6e-4 : 4.5e-3) * std::abs(sum) + 1e-5);
        }
      }
    }
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
