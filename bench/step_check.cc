#include "bench/step_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "glimpse/base/error.h"
#include "glimpse/kernels/index.h"
#include "glimpse/kernels/ref/attention_ref.h"

namespace glimpse::bench {
namespace {

/// One partial result of `group` queries over positions of a head.
std::vector<float> attend_plainly(const StepBed& bed, const kernels::HeadView& view, const float* query, int group,
                                  const std::vector<std::int32_t>& positions) {
  std::vector<float> partial(kernels::partial_floats(group, bed.shape().head_dim));
  kernels::ref::attend(bed.format(), {.head = &view,
                                      .query = query,
                                      .group = group,
                                      .scale = bed.scale(),
                                      .end = static_cast<std::int32_t>(positions.size()),
                                      .list = positions.data(),
                                      .partial = partial.data()});
  return partial;
}

/// RazorAttention's mean token as a partial result: a query of zeros attends to all equally.
std::vector<float> mean_token(const StepBed& bed, const kernels::HeadView& view, const float* query,
                              const std::vector<std::int32_t>& dropped) {
  const auto dim = static_cast<std::size_t>(bed.shape().head_dim);
  const auto group = static_cast<std::size_t>(bed.shape().group());
  const std::vector<float> zeros(dim, 0.0F);
  kernels::HeadView keys = view;
  keys.v_plane = view.k_plane;
  const std::vector<float> k = attend_plainly(bed, keys, zeros.data(), 1, dropped);
  const std::vector<float> v = attend_plainly(bed, view, zeros.data(), 1, dropped);
  std::vector<float> partial(kernels::partial_floats(bed.shape().group(), bed.shape().head_dim));
  for (std::size_t j = 0; j < group; ++j) {
    double dot = 0;
    for (std::size_t i = 0; i < dim; ++i) dot += static_cast<double>(query[j * dim + i]) * k[i];
    std::copy_n(v.begin(), dim, partial.begin() + static_cast<std::ptrdiff_t>(j * dim));
    partial[group * dim + j] = static_cast<float>(dot * bed.scale() + std::log(static_cast<double>(dropped.size())));
  }
  return partial;
}

}  // namespace

void check_outputs(const StepBed& bed, int number, const plan::Plan& plan, int layer,
                   const std::vector<HeadRead>& reads) {
  const plan::ModelShape& shape = bed.shape();
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto group = static_cast<std::size_t>(shape.group());
  check(reads.size() == static_cast<std::size_t>(shape.kv_heads), "every head tells what it read");
  std::vector<std::int32_t> everything(static_cast<std::size_t>(bed.tokens()));
  std::iota(everything.begin(), everything.end(), 0);
  for (const HeadRead& read : reads) {
    const kernels::HeadView view = bed.view(0, layer, read.kv_head);
    const float* const query = bed.query(layer, read.kv_head);
    const plan::Role& role = plan.role(layer, read.kv_head);
    std::vector<float> want(group * dim);
    if (read.query_sets.empty()) {
      std::vector<float> parts = attend_plainly(bed, view, query, shape.group(), read.all ? everything : read.tokens);
      int count = 1;
      if (role.retention >= 0 && plan.retentions[static_cast<std::size_t>(role.retention)].compensates && !read.all) {
        std::vector<std::int32_t> dropped;
        std::set_difference(everything.begin(), everything.end(), read.tokens.begin(), read.tokens.end(),
                            std::back_inserter(dropped));
        const std::vector<float> mean = mean_token(bed, view, query, dropped);
        parts.insert(parts.end(), mean.begin(), mean.end());
        ++count;
      }
      kernels::ref::combine(parts.data(), count, shape.group(), shape.head_dim, want.data());
    } else {
      for (std::size_t j = 0; j < group; ++j) {
        const std::vector<float> part = attend_plainly(bed, view, query + j * dim, 1, read.query_sets[j]);
        std::copy_n(part.begin(), dim, want.begin() + static_cast<std::ptrdiff_t>(j * dim));
      }
    }
    const bool low_rank = bed.state(number).key_ranks[static_cast<std::size_t>(layer)] > 0;
    double off = 0, size = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double difference = static_cast<double>(bed.output(layer, read.kv_head)[i]) - want[i];
      off += difference * difference;
      size += static_cast<double>(want[i]) * want[i];
    }
    const double error = std::sqrt(off / size);
    check(error <= (low_rank ? 0.5 : 1e-4),  // not for NaN either
          fmt::format("{}: layer {}, KV head {}: the output is {:.2e} of its length off the reference", plan.policy,
                      layer, read.kv_head, error));
  }
}

evaluate::SetQuality layer_quality(const StepBed& bed, int layer, const std::vector<HeadRead>& reads) {
  const plan::ModelShape& shape = bed.shape();
  evaluate::SetQuality sum;
  std::vector<float> keys;
  for (const HeadRead& read : reads) {
    if (read.all) continue;
    evaluate::HeadSets head{layer, read.kv_head, read.query_sets, {}};
    if (head.sets.empty()) head.sets.push_back(read.tokens);
    const float* const query = bed.query(layer, read.kv_head);
    head.query.assign(query, query + shape.group() * shape.head_dim);
    keys.resize(static_cast<std::size_t>(bed.tokens()) * static_cast<std::size_t>(shape.head_dim));
    kernels::read_keys(bed.format(), bed.view(0, layer, read.kv_head), 0, static_cast<std::int32_t>(bed.tokens()),
                       keys.data());
    sum += evaluate::quality(head, keys, shape.head_dim);
  }
  return sum;
}

}  // namespace glimpse::bench
