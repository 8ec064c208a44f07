#include "glimpse/kernels/cuda/attend_launch.cuh"

namespace glimpse::kernels::cuda {

void launch_attend_f16(const AttendArguments& arguments, const Limits& limits, CUstream_st* stream) {
  launch_attend_of<__half>(arguments, limits, stream);
}

}  // namespace glimpse::kernels::cuda
