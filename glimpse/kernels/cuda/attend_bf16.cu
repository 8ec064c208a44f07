#include "glimpse/kernels/cuda/attend_launch.cuh"

namespace glimpse::kernels::cuda {

void launch_attend_f16(const AttendArguments& arguments, const Limits& limits, CUstream_st* stream);
void launch_attend_q8(const AttendArguments& arguments, const Limits& limits, CUstream_st* stream);

void launch_attend(const AttendArguments& arguments, const Limits& limits, CUstream_st* stream) {
  if (arguments.cache.type == KvType::f16) return launch_attend_f16(arguments, limits, stream);
  if (arguments.cache.type == KvType::q8_0) return launch_attend_q8(arguments, limits, stream);
  launch_attend_of<__nv_bfloat16>(arguments, limits, stream);
}

}  // namespace glimpse::kernels::cuda
