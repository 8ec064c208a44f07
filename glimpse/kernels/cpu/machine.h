// What processors of one instruction set differ in. Any thread.
#pragma once

namespace glimpse::kernels {

/// While row i of V is read, row number i >> shift of the next K is fetched. 1: half of K; the hardware goes on by
/// itself where it has seen a page begin, and more requests hold up what is read (Zen 3 and Sapphire Rapids). 0: all of
/// K, where the hardware leaves it (Zen 5: 0.80 of the streamed bandwidth, half of K 0.70).
int next_keys_shift();

}  // namespace glimpse::kernels
