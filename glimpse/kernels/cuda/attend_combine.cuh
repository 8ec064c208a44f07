// How the results of blocks that share a head become its output: by the block that comes last, or, where every block
// has one range, by all of them, a piece each.
#pragma once

#include "glimpse/kernels/cuda/bytes.cuh"
#include "glimpse/kernels/cuda/queries.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {

/// The partial results of a segment's work become its output, in the order of its ranges. A few warps have 32
/// neighbouring fours of values of a query head, each with its own ranges, whose weights its lanes have. `room`:
/// [kThreads]. The block synchronises. Few blocks come here, so the code is short: what is not in a cache comes slowly.
template <int kDim, int kThreads>
__device__ inline void combine(const AttendArguments& of, const Segment& s, float4* room) {
  constexpr int kFours = kDim / 4, kChunks = (kFours + 31) / 32, kWarps = kThreads / 32;
  constexpr int kAhead = 8;
  constexpr int kStep = static_cast<int>(2 * partial_values(kDim));  // floats from a range's results to the next's
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int ranges = static_cast<int>(s.ranges);
  const float* const results = of.partials.values + static_cast<std::size_t>(s.first_range) * kStep;
  const auto from = [&](int range) { return results + range * kStep + (range == 0 ? kStep / 2 : 0); };
  const int items = s.queries * kChunks;
  int log_shares = 0;
  while (items << (log_shares + 1) <= kWarps) ++log_shares;
  const int shares = 1 << log_shares;
  const int share = warp & (shares - 1);
#pragma unroll 1
  for (int first = 0; first < items; first += kWarps >> log_shares) {
    const int item = first + (warp >> log_shares);
    const int query = min(item, items - 1) / kChunks;  // warps without an item do another's, and write nothing
    const int four = item % kChunks * 32 + lane;
    const int place = min(four, kFours - 1);
    float4 ahead[kAhead];  // asked for while the weights are worked out
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int range = min(share + i * shares, ranges - 1);
      ahead[i] = __ldcg(reinterpret_cast<const float4*>(from(range) + query * kDim) + place);
    }
    LogSum total;
    float largest = -INFINITY;  // of this lane's range, among the last 32 looked at
#pragma unroll 1
    for (int start = (ranges - 1) / 32 * 32; start >= 0; start -= 32) {
      LogSum part;
      if (start + lane < ranges) {
        const float* const range = from(start + lane) + kTileQueries * kDim + query;
        part = {__ldcg(range), __ldcg(range + kTileQueries)};
      }
      largest = part.largest;
      total.add(part);
    }
#pragma unroll 1
    for (int step = 16; step > 0; step /= 2) total.add_from(~0U, step);
    const float scale = total.sum > 0 ? __frcp_rn(total.sum) : 0;
    float weight = exp2_of(largest - or_zero(total.largest)) * scale;
    float4 out = make_float4(0, 0, 0, 0);
    const auto add = [&](int range, const float4& x) {
      const float by = __shfl_sync(~0U, weight, range % 32);
      out.x += by * x.x;
      out.y += by * x.y;
      out.z += by * x.z;
      out.w += by * x.w;
    };
    int range = share;
#pragma unroll
    for (int i = 0; i < kAhead; ++i, range += shares) {
      if (range < min(32, ranges)) add(range, ahead[i]);
    }
    range = min(range, (31 - share) / shares * shares + share + shares);  // those of the first 32 are added alone
#pragma unroll 1
    for (; range < ranges; range += shares) {
      if (range >= 32 && range - shares < range / 32 * 32) {
        const int other = min(range / 32 * 32 + lane, ranges - 1);
        weight = exp2_of(__ldcg(from(other) + kTileQueries * kDim + query) - or_zero(total.largest)) * scale;
      }
      add(range, __ldcg(reinterpret_cast<const float4*>(from(range) + query * kDim) + place));
    }
    if (item < items && share == 0 && four == 0) {
      if (of.lse != nullptr) of.lse[s.first_query + query] = total.value();
      if (s.scored != 0) of.score_lse[s.first_query + query] = total.value();
    }
    room[threadIdx.x] = out;
    __syncthreads();
    if (item < items && share == 0 && four < kFours) {
#pragma unroll 1
      for (int other = 1; other < shares; ++other) {
        const float4 x = room[threadIdx.x + other * 32];
        out.x += x.x;
        out.y += x.y;
        out.z += x.z;
        out.w += x.w;
      }
      const std::size_t to = static_cast<std::size_t>(s.first_query + query) * kDim;
      reinterpret_cast<float4*>(of.out + to)[four] = out;
      if (of.narrow != nullptr) {
        reinterpret_cast<uint2*>(of.narrow + to)[four] = make_uint2(bf16_pair(out.x, out.y), bf16_pair(out.z, out.w));
      }
    }
    __syncthreads();
  }
}

/// What a range's block leaves of 32 dimensions of a query head: the maximum, the sum of weights, and the values from
/// the fifth number on.
template <int kDim>
__device__ inline float* piece_of(const AttendArguments& of, unsigned range, int query, int part) {
  return of.partials.pieces + range * piece_values(kDim) + (query * (kDim / kPieceDims) + part) * kPieceValues;
}

/// Where every block has one range: each adds up some of the segment's pieces, 32 dimensions of a query head each,
/// when those of all its ranges are there. Eight lanes have a range's piece; of few ranges a warp has a piece to
/// itself, of many all warps share one. `room`: [kWarps]. The block synchronises.
template <int kDim, int kWarps>
__device__ inline void combine_pieces(const AttendArguments& of, const Segment& s, unsigned range,
                                      float (*room)[kPieceDims + 2]) {
  constexpr int kParts = kDim / kPieceDims;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int ranges = static_cast<int>(s.ranges);
  int sharers = 1;  // warps of a piece
  while (sharers < kWarps && sharers * 4 < ranges) sharers *= 2;
  const int pieces = kWarps / sharers;  // at a time
  const float4 nothing = make_float4(__uint_as_float(kNothing), __uint_as_float(kNothing), __uint_as_float(kNothing),
                                     __uint_as_float(kNothing));
  const int items = s.queries * kParts;
#pragma unroll 1
  for (int base = static_cast<int>(range - s.first_range) * pieces; base < items; base += ranges * pieces) {
    const int item = base + warp / sharers;
    const int query = item / kParts, part = item % kParts;
    float largest = -INFINITY, sum = 0;
    float4 out = make_float4(0, 0, 0, 0);
    const int end = item < items ? ranges : 0;
#pragma unroll 1
    for (int first = warp % sharers * 4; first < end; first += sharers * 4) {
      const int other = first + lane / 8;
      const bool counts = other < ranges;
      auto* const piece =
          reinterpret_cast<float4*>(piece_of<kDim>(of, s.first_range + (counts ? other : first), query, part));
      float4 head = seen(piece), x = seen(piece + 1 + lane % 8);
      while (!__all_sync(~0U, is_there(head) && is_there(x))) head = seen(piece), x = seen(piece + 1 + lane % 8);
      if (counts) {
        __stcg(piece + 1 + lane % 8, nothing);
        if (lane % 8 == 0) __stcg(piece, nothing);
        const float most = fmaxf(largest, head.x);
        const float before = exp2_of(largest - or_zero(most)), now = exp2_of(head.x - or_zero(most));
        largest = most;
        sum = sum * before + head.y * now;
        out = make_float4(out.x * before + x.x * now, out.y * before + x.y * now, out.z * before + x.z * now,
                          out.w * before + x.w * now);
      }
    }
#pragma unroll
    for (int step = 8; step < 32; step *= 2) {
      const float most = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
      const float by = exp2_of(largest - or_zero(most));
      largest = most;
      const auto add = [&](float own) {
        own *= by;
        return own + __shfl_xor_sync(~0U, own, step);
      };
      sum = add(sum);
      out = make_float4(add(out.x), add(out.y), add(out.z), add(out.w));
    }
    if (sharers > 1) __syncthreads();  // the room is free
    if (lane < 8) {
      room[warp][lane * 4] = out.x, room[warp][lane * 4 + 1] = out.y;
      room[warp][lane * 4 + 2] = out.z, room[warp][lane * 4 + 3] = out.w;
      if (lane == 0) room[warp][kPieceDims] = largest, room[warp][kPieceDims + 1] = sum;
    }
    __syncwarp();
    if (sharers > 1) __syncthreads();
    if (item < items && warp % sharers == 0) {
      float most = -INFINITY, all = 0, value = 0;
      for (int w = warp; w < warp + sharers; ++w) most = fmaxf(most, room[w][kPieceDims]);
      for (int w = warp; w < warp + sharers; ++w) {
        const float by = exp2_of(room[w][kPieceDims] - or_zero(most));
        all += by * room[w][kPieceDims + 1];
        value += by * room[w][lane];
      }
      value *= all > 0 ? 1 / all : 0;
      const std::size_t to = static_cast<std::size_t>(s.first_query + query);
      of.out[to * kDim + part * kPieceDims + lane] = value;
      if (of.narrow != nullptr) {
        of.narrow[to * kDim + part * kPieceDims + lane] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
      }
      if (part == 0 && lane == 0) {
        const float lse = (most + log2f(all)) * kLogOf2;
        if (of.lse != nullptr) of.lse[to] = lse;
        if (s.scored != 0) of.score_lse[to] = lse;
      }
    }
    __syncwarp();
  }
}

}  // namespace glimpse::kernels::cuda
