#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/select.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

// Scores become unsigned keys of the same order and are found digit by digit: a histogram of the top 11 bits, then of
// the next 11 among the keys of the bin in which the k-th lies, then of the last 10.
struct Digit {
  int shift;
  std::uint32_t mask;
};
constexpr std::array<Digit, 3> kDigits{{{21, 0x7ff}, {10, 0x7ff}, {0, 0x3ff}}};
/// The same in four digits of 8 bits, for few keys: their tables are filled, added up and searched in less time.
constexpr std::array<Digit, 4> kFewDigits{{{24, 0xff}, {16, 0xff}, {8, 0xff}, {0, 0xff}}};
constexpr std::size_t kFew = 4096;
constexpr std::size_t kSorted = 64;  ///< fewer still are partitioned
constexpr std::size_t kBins = 2048;
constexpr std::size_t kTables =
    2;  ///< neighbouring scores mostly share a bin: two tables halve the wait for the last count

/// 0 for NaN and -inf (never chosen); -0 counts as 0.
HWY_INLINE std::uint32_t key_of(float score) {
  if (!(score > kMinusInfinity)) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffU : 0x80000000U);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> keys_of(D d, V score) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto valid = hn::Gt(score, hn::Set(d, kMinusInfinity));
  const auto bits = hn::BitCast(di, hn::Add(score, hn::Zero(d)));
  const auto flip = hn::Or(hn::BitCast(du, hn::ShiftRight<31>(bits)), hn::Set(du, 0x80000000U));
  const auto key = hn::Xor(hn::BitCast(du, bits), flip);
  return hn::BitCast(du, hn::IfThenElseZero(valid, hn::BitCast(d, key)));
}

/// Workspace: tables of counts (or double sums), keys, candidates.
struct Workspace {
  std::uint32_t* counts;
  double* sums;
  std::uint32_t* keys;
};

HWY_INLINE Workspace carve(std::span<std::byte> bytes) {
  const auto start = (reinterpret_cast<std::uintptr_t>(bytes.data()) + 63) / 64 * 64;
  auto* counts = reinterpret_cast<std::uint32_t*>(start);
  auto* sums = reinterpret_cast<double*>(counts + kBins * kTables);
  return {counts, sums, reinterpret_cast<std::uint32_t*>(sums + kBins)};
}

void write_keys(const float* scores, std::size_t count, std::uint32_t* HWY_RESTRICT keys) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(keys_of(d, hn::LoadU(d, scores + i)), du, keys + i);
  for (; i < count; ++i) keys[i] = key_of(scores[i]);
}

void count_digits(const std::uint32_t* keys, std::size_t count, const Digit& digit,
                  std::uint32_t* HWY_RESTRICT counts) {
  const std::size_t bins = std::size_t{digit.mask} + 1;
  std::fill(counts, counts + bins * kTables, 0U);
  std::uint32_t* const odd = counts + bins;
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    ++counts[keys[i] >> digit.shift & digit.mask];
    ++odd[keys[i + 1] >> digit.shift & digit.mask];
    ++counts[keys[i + 2] >> digit.shift & digit.mask];
    ++odd[keys[i + 3] >> digit.shift & digit.mask];
  }
  for (; i < count; ++i) ++counts[keys[i] >> digit.shift & digit.mask];
  for (std::size_t b = 0; b < bins; ++b) counts[b] += odd[b];
}

#if HWY_TARGET == HWY_AVX2
/// For each mask of eight lanes, the lanes that are set, in order.
constexpr auto kSetLanes = [] {
  std::array<std::array<std::uint8_t, 8>, 256> table{};
  for (std::size_t mask = 0; mask < 256; ++mask) {
    std::size_t count = 0;
    for (std::uint8_t lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) != 0) table[mask][count++] = lane;
    }
  }
  return table;
}();
#endif

/// Stores the lanes of `v` that `mask` names, in order, and returns their number; writes a whole vector.
template <class D, class V, class M>
HWY_INLINE std::size_t store_chosen(D d, V v, M mask, std::uint32_t* to) {
#if HWY_TARGET == HWY_AVX2
  // Highway 1.0.3 compiled by GCC 12 copies its 1 KB table at every call.
  std::uint8_t bits[8];
  hn::StoreMaskBits(d, mask, bits);
  const hn::Rebind<std::uint8_t, D> d8;
  const auto order = hn::PromoteTo(d, hn::LoadU(d8, kSetLanes[bits[0]].data()));
  hn::StoreU(hn::TableLookupLanes(v, hn::IndicesFromVec(d, order)), d, to);
  return hwy::PopCount(bits[0]);
#else
  hn::StoreU(hn::Compress(v, mask), d, to);  // to memory at once costs AMD processors a hundred cycles
  return hn::CountTrue(d, mask);
#endif
}

/// Keeps the keys whose digit is `bin`, in order; `to` may be `keys`. Needs room for whole vectors behind.
std::size_t keep_bin(const std::uint32_t* keys, std::size_t count, const Digit& digit, std::uint32_t bin,
                     std::uint32_t* to) {
  const hn::ScalableTag<std::uint32_t> du;
  const std::size_t lanes = hn::Lanes(du);
  const auto mask = hn::Set(du, digit.mask << digit.shift);
  const auto wanted = hn::Set(du, bin << digit.shift);
  std::size_t kept = 0;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto key = hn::LoadU(du, keys + i);
    const auto same = hn::Eq(hn::And(key, mask), wanted);
    if (hn::AllFalse(du, same)) continue;
    kept += store_chosen(du, key, same, to + kept);
  }
  for (; i < count; ++i) {
    if ((keys[i] >> digit.shift & digit.mask) == bin) to[kept++] = keys[i];
  }
  return kept;
}

/// Keeps the keys >= `least`. Needs room for whole vectors behind.
std::size_t keep_from(const std::uint32_t* keys, std::size_t count, std::uint32_t least, std::uint32_t* to) {
  const hn::ScalableTag<std::uint32_t> du;
  const std::size_t lanes = hn::Lanes(du);
  const auto limit = hn::Set(du, least);
  std::size_t kept = 0;
  std::size_t i = 0;
  // No branch for vectors without any: it would be mispredicted every other time.
  for (; i + lanes <= count; i += lanes) {
    const auto key = hn::LoadU(du, keys + i);
    kept += store_chosen(du, key, hn::Eq(hn::Max(key, limit), key), to + kept);
  }
  for (; i < count; ++i) {
    if (keys[i] >= least) to[kept++] = keys[i];
  }
  return kept;
}

/// A key that most likely is a little below the k-th largest, from a sample; `scratch` holds the sample.
std::uint32_t guess_below(const std::uint32_t* keys, std::size_t count, std::size_t k, std::uint32_t* scratch) {
  constexpr std::size_t kSample = 512;
  const std::size_t stride = count / kSample;
  for (std::size_t i = 0; i < kSample; ++i) scratch[i] = keys[i * stride + (i * 7) % stride];
  const double expected = static_cast<double>(k) * kSample / static_cast<double>(count);
  const auto rank = static_cast<std::size_t>(expected + 3 * std::sqrt(expected) + 2);
  if (rank >= kSample) return 0;
  std::nth_element(scratch, scratch + rank, scratch + kSample, std::greater<>());
  return scratch[rank];
}

/// Writes the indices of keys >= least, all of which are to be chosen.
std::size_t write_from(const std::uint32_t* keys, std::size_t count, std::uint32_t least, std::span<std::int32_t> out) {
  const hn::ScalableTag<std::uint32_t> du;
  const hn::RebindToSigned<decltype(du)> di;
  const std::size_t lanes = hn::Lanes(du);
  const auto limit = hn::Set(du, least);
  std::size_t written = 0;
  std::size_t i = 0;
  auto indices = hn::BitCast(du, hn::Iota(di, 0));
  const auto step = hn::Set(du, static_cast<std::uint32_t>(lanes));
  // A store writes a whole vector: not past the end of `out`.
  for (; i + lanes <= count && written + lanes <= out.size(); i += lanes) {
    const auto key = hn::LoadU(du, keys + i);
    written += store_chosen(du, indices, hn::Eq(hn::Max(key, limit), key),
                            reinterpret_cast<std::uint32_t*>(out.data()) + written);
    indices = hn::Add(indices, step);
  }
  for (; i < count && written < out.size(); ++i) {
    if (keys[i] >= least) out[written++] = static_cast<std::int32_t>(i);
  }
  return written;
}

/// Writes the indices of keys > cut, and of the first `ties` keys == cut.
std::size_t write_with_ties(const std::uint32_t* keys, std::size_t count, std::uint32_t cut, std::size_t ties,
                            std::span<std::int32_t> out) {
  std::size_t written = 0;
  for (std::size_t i = 0; i < count && written < out.size(); ++i) {
    const bool tie = keys[i] == cut && ties > 0;
    ties -= tie ? 1 : 0;
    if (tie || keys[i] > cut) out[written++] = static_cast<std::int32_t>(i);
  }
  return written;
}

/// The `wanted`-th largest of a few keys, which it reorders; `wanted` becomes how many keys equal to it are to be
/// chosen.
std::uint32_t cut_few(std::span<std::uint32_t> keys, std::size_t& wanted) {
  const auto place = keys.begin() + static_cast<std::ptrdiff_t>(wanted - 1);
  std::nth_element(keys.begin(), place, keys.end(), std::greater<>());
  const std::uint32_t cut = *place;
  wanted -=
      static_cast<std::size_t>(std::count_if(keys.begin(), keys.end(), [&](std::uint32_t key) { return key > cut; }));
  return cut;
}

std::size_t select_target(std::span<const float> scores, std::size_t k, std::span<std::int32_t> out,
                          std::span<std::byte> bytes) {
  const Workspace work = carve(bytes);
  std::uint32_t* const keys = work.keys;
  std::uint32_t* const candidates = keys + scores.size();
  write_keys(scores.data(), scores.size(), keys);

  std::uint32_t cut = 0;
  std::size_t wanted = k;  // still to find among the candidates
  const std::uint32_t* from = keys;
  std::size_t count = scores.size();
  // A few more than k candidates are counted in a tenth of the time. Where the guess misses, all are.
  if (count >= kFew && k < count / 2) {
    const std::size_t kept = keep_from(keys, count, guess_below(keys, count, k, candidates), candidates);
    if (kept >= k) {
      from = candidates;
      count = kept;
    }
  }
  const std::span<const Digit> digits =
      count < kFew ? std::span<const Digit>(kFewDigits) : std::span<const Digit>(kDigits);
  for (const Digit& digit : digits) {
    if (count <= kSorted) {
      if (from == keys) std::copy_n(keys, count, candidates);
      cut = cut_few({candidates, count}, wanted);
      count = static_cast<std::size_t>(std::count(candidates, candidates + count, cut));
      break;
    }
    count_digits(from, count, digit, work.counts);
    std::size_t bin = digit.mask;
    while (bin > 0 && wanted > work.counts[bin]) wanted -= work.counts[bin--];
    cut |= static_cast<std::uint32_t>(bin) << digit.shift;
    count = keep_bin(from, count, digit, static_cast<std::uint32_t>(bin), candidates);
    from = candidates;
  }
  // Key 0 is never chosen: with fewer than k scores left, everything above it is.
  if (cut == 0) return write_from(keys, scores.size(), 1, out);
  if (wanted == count) return write_from(keys, scores.size(), cut, out);
  return write_with_ties(keys, scores.size(), cut, wanted, out);
}

std::size_t mass_target(std::span<const float> probabilities, double mass, std::span<std::byte> bytes) {
  if (!(mass > 0)) return 0;
  const Workspace work = carve(bytes);
  std::uint32_t* const candidates = work.keys;
  std::size_t count = 0;
  for (const float p : probabilities) {
    if (p > 0) candidates[count++] = std::bit_cast<std::uint32_t>(p);
  }
  double sum = 0;
  std::size_t chosen = 0;
  for (const Digit& digit : kDigits) {
    count_digits(candidates, count, digit, work.counts);
    std::fill(work.sums, work.sums + kBins, 0.0);
    for (std::size_t i = 0; i < count; ++i) {
      work.sums[candidates[i] >> digit.shift & digit.mask] += std::bit_cast<float>(candidates[i]);
    }
    std::size_t bin = digit.mask;
    while (bin > 0 && sum + work.sums[bin] < mass) {
      chosen += work.counts[bin];
      sum += work.sums[bin--];
    }
    count = keep_bin(candidates, count, digit, static_cast<std::uint32_t>(bin), candidates);
  }
  // What is left are equal values.
  for (std::size_t i = 0; i < count && sum < mass; ++i) {
    sum += std::bit_cast<float>(candidates[0]);
    ++chosen;
  }
  return chosen;
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(select_target);
HWY_EXPORT(mass_target);

std::size_t select_workspace(std::size_t count) {
  constexpr std::size_t kSlack = 64;  // for alignment; and a compacting store writes a whole vector
  constexpr std::size_t kTableBytes = 2048 * (2 * sizeof(std::uint32_t) + sizeof(double));
  return kTableBytes + 2 * count * sizeof(std::uint32_t) + 3 * kSlack;
}

std::size_t select_top_k(std::span<const float> scores, std::size_t k, std::span<std::int32_t> out,
                         std::span<std::byte> workspace) {
  k = std::min(k, scores.size());
  check(out.size() >= k, "select_top_k has no room for k indices");
  check(workspace.size() >= select_workspace(scores.size()), "select_top_k needs more workspace");
  if (k == 0) return 0;
  return HWY_DYNAMIC_DISPATCH(select_target)(scores, k, out.first(k), workspace);
}

std::size_t count_for_mass(std::span<const float> probabilities, double mass, std::span<std::byte> workspace) {
  check(workspace.size() >= select_workspace(probabilities.size()), "count_for_mass needs more workspace");
  return HWY_DYNAMIC_DISPATCH(mass_target)(probabilities, mass, workspace);
}

}  // namespace glimpse::kernels
#endif
