#include "glimpse/kernels/cuda/boxes.h"

#include <array>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/check.h"

namespace glimpse::kernels::cuda {

CUtensorMap box_map(const void* from, int width, int rows, int box_rows) {
  constexpr unsigned kSince = 12000;  // CUDA 12
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &result),
               "asking for what describes boxes");
    check(result == cudaDriverEntryPointSuccess, "a driver that describes boxes");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  const std::array size{static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(rows)};
  const auto row_bytes = static_cast<cuuint64_t>(width) * 2;
  const std::array box{static_cast<cuuint32_t>(kBoxWidth), static_cast<cuuint32_t>(box_rows)};
  const std::array<cuuint32_t, 2> every{1, 1};
  CUtensorMap map{};
  // The cache fetches 256 bytes of a row: the next box of the row begins there.
  const CUresult made =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(from), size.data(), &row_bytes, box.data(),
             every.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(made == CUDA_SUCCESS, "a matrix whose rows are whole pieces of 16 bytes");
  return map;
}

}  // namespace glimpse::kernels::cuda
