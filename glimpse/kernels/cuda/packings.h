// A packing as template arguments. Host code.
#pragma once

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/packed.h"

namespace glimpse::kernels::cuda {

/// Calls function<bits, scales>() of the packing.
template <class Function>
void with_packing(const Packing& packing, Function&& function) {
  const auto is = [&](int bits, Scales scales) { return packing == Packing{bits, scales}; };
  if (is(4, Scales::block)) return function.template operator()<4, Scales::block>();
  if (is(4, Scales::block_offset)) return function.template operator()<4, Scales::block_offset>();
  if (is(4, Scales::super_offset)) return function.template operator()<4, Scales::super_offset>();
  if (is(5, Scales::block)) return function.template operator()<5, Scales::block>();
  if (is(5, Scales::block_offset)) return function.template operator()<5, Scales::block_offset>();
  if (is(5, Scales::super_offset)) return function.template operator()<5, Scales::super_offset>();
  if (is(6, Scales::super_signed)) return function.template operator()<6, Scales::super_signed>();
  if (is(8, Scales::block)) return function.template operator()<8, Scales::block>();
  if (packing.in_rows()) return function.template operator()<16, Scales::none>();
  check(false, "a packing that GGUF has");
}

}  // namespace glimpse::kernels::cuda
