// Searches of units and queries of gates against plain loops in double.
#include "glimpse/kernels/cuda/units.h"

#include "device_bed.h"
#include "glimpse/base/size.h"

namespace glimpse::kernels::cuda::test {
namespace {

class UnitsTest : public CudaTest {};

std::vector<OperationsCase> unit_cases() {
  return {{.name = "a batch", .kv_heads = 3, .group = 4, .lengths = {5000, 900, 17, 9}},
          {.name = "alone", .dim = 128, .kv_heads = 4, .group = 1, .lengths = {3000}},
          {.name = "dim 96, group 17", .dim = 96, .kv_heads = 1, .group = 17, .lengths = {1200, 30}},
          {.name = "dim 256", .dim = 256, .kv_heads = 2, .group = 5, .lengths = {2000}}};
}

/// What a search reads, on the host.
struct HostUnits {
  UnitSearch search;
  std::vector<float> rows, radii;
  std::vector<std::int32_t> marked;
};

HostUnits random_units(OperationsBed& bed, std::size_t row, int head, int gates) {
  HostUnits made;
  UnitSearch& s = made.search;
  s.row = static_cast<std::int32_t>(row);
  s.head = head;
  const std::int32_t units = std::max(1, bed.seen(row) / 8);
  s.first = bed.below(std::max(1, units / 4));
  s.last = s.first + bed.below(units - s.first + 1);
  s.kind = static_cast<UnitKind>(bed.below(4));
  if (gates > 0 && bed.below(3) == 0) s.gate = bed.below(gates);
  s.width = s.gate >= 0 ? 24 + 8 * bed.below(60) : bed.of.dim;
  if (s.gate >= 0) s.kind = UnitKind::mean;
  s.mean_query = s.gate < 0 && bed.below(4) == 0 ? 1 : 0;
  s.softmax = bed.below(2);
  s.zeros = s.softmax * bed.below(3);
  s.scale = 1 / std::sqrt(static_cast<float>(s.width));
  s.weight = 0.75F;
  const bool two = s.kind == UnitKind::deviation || s.kind == UnitKind::bounds;
  bed.fill(made.rows, size(units) * size(s.width) * (two ? 2 : 1));
  bed.fill(made.radii, size(units));
  for (float& x : made.radii) x = std::abs(x);
  for (std::size_t i = 0; two && i < made.rows.size(); ++i) {
    const std::size_t in_row = i % (2 * size(s.width));
    if (in_row < size(s.width)) continue;
    made.rows[i] = std::abs(made.rows[i]);  // a variance, or what is above the least
    if (s.kind == UnitKind::bounds) made.rows[i] += made.rows[i - size(s.width)];
  }
  for (std::int32_t unit = 0; unit < units; ++unit) {
    if (bed.below(9) == 0) made.marked.push_back(unit);
  }
  s.marked_count = static_cast<std::int32_t>(made.marked.size());
  return made;
}

/// Scores of units [first, last) by one query.
std::vector<double> scores_of(const HostUnits& of, const std::vector<double>& q) {
  const UnitSearch& s = of.search;
  const std::size_t width = size(s.width);
  double squares = 0;
  for (const double x : q) squares += x * x;
  std::vector<double> scores;
  for (std::int32_t unit = s.first; unit < s.last; ++unit) {
    const bool two = s.kind == UnitKind::deviation || s.kind == UnitKind::bounds;
    const float* const x = of.rows.data() + size(unit) * width * (two ? 2 : 1);
    double dot = 0, variance = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const bool largest = s.kind == UnitKind::bounds && q[i] >= 0;
      dot += q[i] * (largest ? x[width + i] : x[i]);
      const double weighed = s.weight * s.scale * q[i];
      if (s.kind == UnitKind::deviation) variance += weighed * weighed * x[width + i];
    }
    double score = s.scale * dot + std::sqrt(variance);
    if (s.kind == UnitKind::sphere) score += s.scale * std::sqrt(squares) * of.radii[size(unit)];
    scores.push_back(score);
  }
  const auto is_marked = [&](std::size_t i) {
    return std::binary_search(of.marked.begin(), of.marked.end(), s.first + static_cast<std::int32_t>(i));
  };
  if (s.softmax != 0) {
    double sum = s.zeros;
    for (std::size_t i = 0; i < scores.size(); ++i) sum += is_marked(i) ? 0 : std::exp(scores[i]);
    for (double& score : scores) score -= std::log(sum);
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (is_marked(i)) scores[i] = std::numeric_limits<double>::infinity();
  }
  return scores;
}

TEST_F(UnitsTest, AreScoredAsTheirKindSays) {
  constexpr int kGates = 3;
  for (const OperationsCase& c : unit_cases()) {
    SCOPED_TRACE(c.name);
    OperationsBed bed(c, KvType::bf16, 5);
    const std::size_t group = size(bed.of.group);
    std::vector<float> gate_queries;
    bed.fill(gate_queries, kGates * kMostGateDim);
    std::vector<HostUnits> all;
    std::vector<float> want(bed.queries() * bed.stride, kNan);
    std::int32_t most = 0;
    for (std::size_t row = 0; row < bed.rows(); ++row) {
      for (int head = 0; head < bed.of.kv_heads; ++head) {
        all.push_back(random_units(bed, row, head, kGates));
        const UnitSearch& s = all.back().search;
        most = std::max(most, s.last);
        const std::size_t first = (row * size(bed.of.kv_heads) + size(head)) * group;
        const std::size_t queries = s.gate >= 0 || s.mean_query != 0 ? 1 : group;
        for (std::size_t j = 0; j < queries; ++j) {
          const float* const from =
              s.gate >= 0 ? gate_queries.data() + size(s.gate) * kMostGateDim : bed.q.data() + (first + j) * bed.dim();
          std::vector<double> q(from, from + s.width);
          for (std::size_t other = 1; s.mean_query != 0 && other < group; ++other) {
            for (std::size_t i = 0; i < q.size(); ++i) q[i] += from[other * bed.dim() + i];
          }
          if (s.mean_query != 0) {
            for (double& x : q) x /= static_cast<double>(group);
          }
          const std::vector<double> scores = scores_of(all.back(), q);
          for (std::size_t i = 0; i < scores.size(); ++i) {
            want[(first + j) * bed.stride + size(s.first) + i] = static_cast<float>(scores[i]);
          }
        }
      }
    }
    const DeviceBed on(*stream_, bed);
    std::vector<Array<float>> values;
    std::vector<Array<std::int32_t>> marked;
    std::vector<UnitSearch> searches;
    for (HostUnits& of : all) {
      values.emplace_back(*stream_, of.rows);
      of.search.rows = values.back().constant().raw();
      values.emplace_back(*stream_, of.radii);
      of.search.radii = values.back().constant().raw();
      of.marked.resize(of.marked.size() + 1);  // memory of no bytes has no place
      marked.emplace_back(*stream_, of.marked);
      of.search.marked = marked.back().constant().raw();
      searches.push_back(of.search);
    }
    const Array<UnitSearch> device_searches(*stream_, searches);
    const Array<float> device_queries(*stream_, gate_queries);
    const Array<float> scores(*stream_, std::vector<float>(bed.queries() * bed.stride, kNan));
    search_units(*stream_, {.cache = on.cache(),
                            .q = on.q(),
                            .group = bed.of.group,
                            .searches = device_searches.constant(),
                            .count = static_cast<int>(searches.size()),
                            .most = most,
                            .gate_queries = device_queries.constant(),
                            .out = {scores.pointer(), {}, bed.stride}});
    expect_near(scores.values(), want, 1e-4);
  }
}

TEST_F(UnitsTest, GatesMakeTheirQueries) {
  for (const bool neox : {false, true}) {
    for (const OperationsCase& c : unit_cases()) {
      SCOPED_TRACE(c.name + (neox ? ", halves" : ", pairs"));
      OperationsBed bed(c, KvType::bf16, 6);
      const std::size_t dim = bed.dim(), group = size(bed.of.group);
      const int turned = bed.of.dim - 32;
      std::vector<float> angles;
      const auto add_angles = [&](int dims, float magnitude) {
        const auto at = static_cast<std::uint32_t>(angles.size());
        for (int i = 0; i < dims / 2; ++i) {
          const double angle = 0.37 * static_cast<double>(angles.size());
          angles.push_back(magnitude * static_cast<float>(std::cos(angle)));
          angles.push_back(magnitude * static_cast<float>(std::sin(angle)));
        }
        return at;
      };
      std::vector<GateQuery> gates;
      std::vector<std::vector<float>> weights, norms;
      std::vector<float> want;
      for (std::size_t row = 0; row < bed.rows(); ++row) {
        for (int head = 0; head < bed.of.kv_heads; ++head) {
          GateQuery gate;
          gate.row = static_cast<std::int32_t>(row);
          gate.head = head;
          gate.dim = 8 * (1 + bed.below(kMostGateDim / 8));
          gate.rotated = 2 * bed.below(gate.dim / 2 + 1);
          gate.epsilon = 1e-6F;
          gate.turn = add_angles(turned, 1.25F);
          gate.own_turn = add_angles(gate.rotated, 1.5F);
          const bool normed = bed.below(3) > 0;
          const std::size_t e = size(gate.dim);
          bed.fill(weights.emplace_back(), group * e * dim);
          bed.fill(norms.emplace_back(), e);
          std::vector<double> sums(e, 0);
          for (std::size_t j = 0; j < group; ++j) {
            const float* const from = bed.q.data() + ((row * size(bed.of.kv_heads) + size(head)) * group + j) * dim;
            std::vector<double> q(from, from + dim);
            for (int i = 0; i < turned / 2; ++i) {
              const std::size_t a = size(neox ? i : 2 * i), b = size(neox ? i + turned / 2 : 2 * i + 1);
              const double cosine = angles[gate.turn + size(2 * i)] / 1.25,
                           sine = angles[gate.turn + size(2 * i + 1)] / 1.25;
              q[a] = (from[a] * cosine + from[b] * sine) / 1.25;
              q[b] = (from[b] * cosine - from[a] * sine) / 1.25;
            }
            for (std::size_t o = 0; o < e; ++o) {
              for (std::size_t i = 0; i < dim; ++i) sums[o] += weights.back()[(j * e + o) * dim + i] * q[i];
            }
          }
          if (normed) {
            double squares = 0;
            for (const double x : sums) squares += x * x;
            const double scale = 1 / std::sqrt(squares / static_cast<double>(e) + 1e-6);
            for (std::size_t o = 0; o < e; ++o) sums[o] *= scale * norms.back()[o];
          }
          const std::vector<double> still = sums;
          for (std::size_t i = 0; i < size(gate.rotated / 2); ++i) {
            const std::size_t other = i + size(gate.rotated / 2);
            const double cosine = angles[gate.own_turn + 2 * i], sine = angles[gate.own_turn + 2 * i + 1];
            sums[i] = still[i] * cosine - still[other] * sine;
            sums[other] = still[i] * sine + still[other] * cosine;
          }
          want.insert(want.end(), sums.begin(), sums.end());
          want.resize(want.size() + kMostGateDim - e, kNan);
          if (!normed) norms.back().clear();
          gates.push_back(gate);
        }
      }
      const DeviceBed on(*stream_, bed);
      std::vector<Array<float>> memory;
      for (std::size_t i = 0; i < gates.size(); ++i) {
        gates[i].weights = memory.emplace_back(*stream_, weights[i]).constant().raw();
        if (!norms[i].empty()) gates[i].norm = memory.emplace_back(*stream_, norms[i]).constant().raw();
      }
      const Array<GateQuery> device_gates(*stream_, gates);
      const Array<float> device_angles(*stream_, angles), out(*stream_, std::vector<float>(want.size(), kNan));
      gate_queries(*stream_, {.q = on.q(),
                              .kv_heads = bed.of.kv_heads,
                              .group = bed.of.group,
                              .head_dim = bed.of.dim,
                              .angles = device_angles.constant(),
                              .turned = turned,
                              .neox = neox,
                              .gates = device_gates.constant(),
                              .count = static_cast<int>(gates.size()),
                              .out = out.pointer()});
      expect_near(out.values(), want, 2e-3);  // sums of up to 1,632 products
    }
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
