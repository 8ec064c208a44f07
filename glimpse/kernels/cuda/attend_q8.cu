#include "glimpse/kernels/cuda/attend_launch.cuh"

namespace glimpse::kernels::cuda {

void launch_attend_q8(const AttendArguments& arguments, const Limits& limits, CUstream_st* stream) {
  launch_attend_of<std::int8_t>(arguments, limits, stream);
}

}  // namespace glimpse::kernels::cuda
