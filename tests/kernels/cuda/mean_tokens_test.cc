// Mean tokens for what windows lost, against plain loops.
#include "glimpse/kernels/cuda/mean_tokens.h"

#include "device_bed.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/ref/rows.h"

namespace glimpse::kernels::cuda::test {
namespace {

class MeanTokensTest : public CudaTest {};

/// What a head of a row lost: some rows are in the sums, some come in, some count in this pass alone. Pages behind the
/// gap are gone.
MeanToken some_token(OperationsBed& bed, std::size_t row, int head) {
  MeanToken token;
  token.row = static_cast<std::int32_t>(row);
  token.head = head;
  const std::int32_t slots = bed.seen(row);
  token.gap = 16;
  token.gone = 16 * bed.below(3);
  token.first = bed.below(5);
  const std::int32_t last = slots > 16 ? slots + token.gone - 1 : slots - 1;
  token.end = std::max(token.first + 1, last - bed.below(20));
  token.end = std::min(token.end, last + 1);
  token.first = std::min(token.first, token.end - 1);
  token.held = std::min(token.end, token.first + bed.below(slots));
  if (token.held > token.gap) token.held = std::min(token.end, std::max(token.held, token.gap + token.gone));
  token.take = token.held + bed.below(std::max(1, token.end - token.held));
  // What is gone is in the sums.
  if (token.gone > 0 && token.end > token.gap) {
    token.held = std::max(token.held, std::min(token.end, token.gap + token.gone));
    token.take = std::max(token.take, token.held);
  }
  return token;
}

TEST_F(MeanTokensTest, JoinWhatWasRead) {
  for (const KvType type : kTypes) {
    for (const OperationsCase& c :
         {OperationsCase{.name = "a batch", .kv_heads = 3, .group = 4, .lengths = {700, 90, 17, 9}},
          OperationsCase{.name = "dim 256", .dim = 256, .group = 3, .lengths = {300}},
          OperationsCase{.name = "group 17", .dim = 96, .kv_heads = 1, .group = 17, .lengths = {1200}}}) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      OperationsBed bed(c, type, 3);
      const std::size_t dim = bed.dim();
      std::vector<MeanToken> tokens;
      std::vector<float> out, lse;
      bed.fill(out, bed.queries() * dim);
      bed.fill(lse, bed.queries());
      std::vector<double> sums;
      std::vector<float> want = out;
      std::vector<double> want_sums;
      for (std::size_t row = 0; row < bed.rows(); ++row) {
        for (int head = 0; head < bed.of.kv_heads; ++head) {
          const MeanToken token = some_token(bed, row, head);
          tokens.push_back(token);
          std::vector<float> held;
          bed.fill(held, 2 * dim);
          std::vector<double> total(held.begin(), held.end());
          sums.insert(sums.end(), total.begin(), total.end());
          const HeadView& view = bed.views[size(bed.sequence[row]) * size(bed.of.kv_heads) + size(head)];
          const auto add = [&](std::int32_t begin, std::int32_t end) {
            for (std::int32_t position = begin; position < end; ++position) {
              const std::int32_t slot = position < token.gap ? position : position - token.gone;
              ASSERT_GE(slot, 0);
              ASSERT_LT(slot, view.slots);
              const std::vector<double> k = ref::read_row(bed.format, view, view.k_plane, slot);
              const std::vector<double> v = ref::read_row(bed.format, view, view.v_plane, slot);
              for (std::size_t i = 0; i < dim; ++i) total[i] += k[i], total[dim + i] += v[i];
            }
          };
          add(token.held, token.take);
          want_sums.insert(want_sums.end(), total.begin(), total.end());
          add(token.take, token.end);
          const double count = token.end - token.first;
          for (std::size_t j = 0; j < size(bed.of.group); ++j) {
            const std::size_t at = (row * size(bed.of.kv_heads) + size(head)) * size(bed.of.group) + j;
            double score = std::log(count);
            for (std::size_t i = 0; i < dim; ++i) score += 0.125 * bed.q[at * dim + i] * total[i] / count;
            const double read = std::exp(static_cast<double>(lse[at])), lost = std::exp(score);
            for (std::size_t i = 0; i < dim; ++i) {
              float& value = want[at * dim + i];
              value = static_cast<float>((value * read + total[dim + i] / count * lost) / (read + lost));
            }
          }
        }
      }
      const DeviceBed on(*stream_, bed);
      const Array<double> device_sums(*stream_, sums);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        tokens[i].sums = device_sums.pointer().raw() + i * 2 * dim;
      }
      const Array<MeanToken> device_tokens(*stream_, tokens);
      const Array<float> device_out(*stream_, out), device_lse(*stream_, lse);
      add_mean_tokens(*stream_, {on.cache(), on.rows(), on.q(), bed.of.group, 0.125F, device_tokens.constant(),
                                 static_cast<int>(tokens.size()), device_lse.constant(), device_out.pointer()});
      expect_near(device_out.values(), want, 1e-5);
      const std::vector<double> got = device_sums.values();
      const double rounding = type == KvType::q8_0 ? 1e-4 : 1e-9;  // of bytes times their scale to floats
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want_sums[i], rounding) << i;
    }
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
