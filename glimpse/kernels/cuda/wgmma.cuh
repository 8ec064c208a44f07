// Hopper's warpgroup products (wgmma): 64 rows by 16 to 160 columns by 16, f32 sums in registers, the right
// operand in shared memory, and the barriers in shared memory that hand tiles from those who bring them to those who
// multiply.
//
// Operands in shared memory lie in blocks of 64 values (128 bytes) a row, whose pieces of 16 bytes change places by the
// row's number (tile_offset). A block begins at a multiple of 1,024 bytes. Products run beside what follows them until
// wait_products; what they read and write must be named to hold() behind that, or the compiler may use it too early.
// Only for code for compute capability 9.0a.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/mma.cuh"

namespace glimpse::kernels::cuda {

/// Bytes from a block's first row to row `row`, piece `piece` of 8.
__device__ inline std::uint32_t tile_offset(int row, int piece) {
  return static_cast<std::uint32_t>(row * 128 + (piece ^ (row & 7)) * 16);
}

/// How products find an operand: its address, and bytes between blocks of 64 columns. Adding to it adds units of
/// 16 bytes to the address.
inline constexpr std::uint64_t kSwizzled = std::uint64_t{1} << 62;
inline constexpr std::uint64_t kEightRows = std::uint64_t{1024 >> 4} << 32;
__device__ inline std::uint64_t operand(std::uint32_t address, int block_bytes) {
  return kSwizzled | kEightRows | static_cast<std::uint64_t>(block_bytes >> 4) << 16 | (address & 0x3ffffU) >> 4;
}

__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void close_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kLeft>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
template <int kCount>
__device__ inline void hold(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kSteps>
__device__ inline void hold(std::uint32_t (&values)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < kSteps * 4; ++i) asm volatile("" : "+r"(values[i / 4][i % 4])::"memory");
}

// Lists of operands of the products below.
#define GLIMPSE_8(x, i)                                                                                       \
  "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), \
      "+f"(x[i + 7])
#define GLIMPSE_32(x, i) GLIMPSE_8(x, i), GLIMPSE_8(x, i + 8), GLIMPSE_8(x, i + 16), GLIMPSE_8(x, i + 24)
#define GLIMPSE_NAMES_32                                                                                           \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
  "%30,%31"
#define GLIMPSE_NAMES_64                                                                                             \
  GLIMPSE_NAMES_32                                                                                                   \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59" \
  ",%60,%61,%62,%63"
#define GLIMPSE_NAMES_80 GLIMPSE_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define GLIMPSE_ADD_ROWS(type)                                                                                    \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %82, 0; wgmma.mma_async.sync.aligned.m64n160k16.f32." type "." type \
               " {" GLIMPSE_NAMES_80 "}, %80, %81, p, 1, 1, 0, 0;}"                                               \
               : GLIMPSE_32(sums, 0), GLIMPSE_32(sums, 32), GLIMPSE_8(sums, 64), GLIMPSE_8(sums, 72)              \
               : "l"(a), "l"(b), "r"(add))
#define GLIMPSE_ADD_COLUMNS_128(type)                                                             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" GLIMPSE_NAMES_64 \
               "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                           \
               : GLIMPSE_32(sums, 0), GLIMPSE_32(sums, 32)                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define GLIMPSE_ADD_COLUMNS_64(type)                                                             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" GLIMPSE_NAMES_32 \
               "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                          \
               : GLIMPSE_32(sums, 0)                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/// sums (+)= 64 rows of a times 160 rows of b, 16 values of each; both in shared memory. Not `add`: sums begin here.
template <class T>
__device__ inline void multiply_rows(float (&sums)[80], std::uint64_t a, std::uint64_t b, int add) {
  if constexpr (__is_same(T, __nv_bfloat16)) {
    GLIMPSE_ADD_ROWS("bf16");
  } else {
    GLIMPSE_ADD_ROWS("f16");
  }
}
/// sums += a (64 x 16, as a thread's registers of mma.m16n8k16) times 16 rows of b, 128 or 64 values of each.
template <class T>
__device__ inline void multiply_columns(float (&sums)[64], const std::uint32_t (&a)[4], std::uint64_t b) {
  if constexpr (__is_same(T, __nv_bfloat16)) {
    GLIMPSE_ADD_COLUMNS_128("bf16");
  } else {
    GLIMPSE_ADD_COLUMNS_128("f16");
  }
}
template <class T>
__device__ inline void multiply_columns(float (&sums)[32], const std::uint32_t (&a)[4], std::uint64_t b) {
  if constexpr (__is_same(T, __nv_bfloat16)) {
    GLIMPSE_ADD_COLUMNS_64("bf16");
  } else {
    GLIMPSE_ADD_COLUMNS_64("f16");
  }
}
#define GLIMPSE_NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define GLIMPSE_NAMES_16 GLIMPSE_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define GLIMPSE_NAMES_24 GLIMPSE_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define GLIMPSE_NAMES_40 GLIMPSE_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define GLIMPSE_NAMES_48 GLIMPSE_NAMES_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define GLIMPSE_ADD_FEW(columns, names, add_name, operands)                                               \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " add_name ", 0; wgmma.mma_async.sync.aligned.m64n" columns \
               "k16.f32.bf16.bf16 {" names "}, " operands ", p, 1, 1, 0, 0;}"

/// The same for 16, 32, 48, 64, 80, 96 or 128 rows of b, in bf16.
__device__ inline void multiply_rows(float (&sums)[8], std::uint64_t a, std::uint64_t b, int add) {
  GLIMPSE_ADD_FEW("16", GLIMPSE_NAMES_8, "%10", "%8, %9") : GLIMPSE_8(sums, 0) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void multiply_rows(float (&sums)[16], std::uint64_t a, std::uint64_t b, int add) {
  GLIMPSE_ADD_FEW("32", GLIMPSE_NAMES_16, "%18", "%16, %17")
      : GLIMPSE_8(sums, 0), GLIMPSE_8(sums, 8) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void multiply_rows(float (&sums)[24], std::uint64_t a, std::uint64_t b, int add) {
  GLIMPSE_ADD_FEW("48", GLIMPSE_NAMES_24, "%26", "%24, %25")
      : GLIMPSE_8(sums, 0), GLIMPSE_8(sums, 8), GLIMPSE_8(sums, 16) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void multiply_rows(float (&sums)[32], std::uint64_t a, std::uint64_t b, int add) {
  GLIMPSE_ADD_FEW("64", GLIMPSE_NAMES_32, "%34", "%32, %33") : GLIMPSE_32(sums, 0) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void multiply_rows(float (&sums)[40], std::uint64_t a, std::uint64_t b, int add) {
  GLIMPSE_ADD_FEW("80", GLIMPSE_NAMES_40, "%42", "%40, %41")
      : GLIMPSE_32(sums, 0), GLIMPSE_8(sums, 32) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void multiply_rows(float (&sums)[48], std::uint64_t a, std::uint64_t b, int add) {
  GLIMPSE_ADD_FEW("96", GLIMPSE_NAMES_48, "%50", "%48, %49")
      : GLIMPSE_32(sums, 0), GLIMPSE_8(sums, 32), GLIMPSE_8(sums, 40) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void multiply_rows(float (&sums)[64], std::uint64_t a, std::uint64_t b, int add) {
  GLIMPSE_ADD_FEW("128", GLIMPSE_NAMES_64, "%66", "%64, %65")
      : GLIMPSE_32(sums, 0), GLIMPSE_32(sums, 32) : "l"(a), "l"(b), "r"(add));
}
static_assert((kSwizzled | kEightRows) == std::uint64_t{0x40000040} << 32);  // as the products below have it
#define GLIMPSE_ADD_HELD(columns, names, a, b, add)                                                       \
  asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, " add ", 0; mov.b64 b, {" b ", 0x40000040};\n"      \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" names "}, " a ", b, p, 1, 1, 0;}"

/// The same for 16, 32 or 64 rows of b, where a thread holds its part of a, as of mma.m16n8k16. `b` is the lower half
/// of an operand() without further blocks.
__device__ inline void multiply_rows(float (&sums)[8], const std::uint32_t (&a)[4], std::uint32_t b, int add) {
  GLIMPSE_ADD_HELD("16", GLIMPSE_NAMES_8, "{%8,%9,%10,%11}", "%12", "%13")
      : GLIMPSE_8(sums, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}
__device__ inline void multiply_rows(float (&sums)[16], const std::uint32_t (&a)[4], std::uint32_t b, int add) {
  GLIMPSE_ADD_HELD("32", GLIMPSE_NAMES_16, "{%16,%17,%18,%19}", "%20", "%21")
      : GLIMPSE_8(sums, 0), GLIMPSE_8(sums, 8) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}
__device__ inline void multiply_rows(float (&sums)[32], const std::uint32_t (&a)[4], std::uint32_t b, int add) {
  GLIMPSE_ADD_HELD("64", GLIMPSE_NAMES_32, "{%32,%33,%34,%35}", "%36", "%37")
      : GLIMPSE_32(sums, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}
#undef GLIMPSE_ADD_HELD
#undef GLIMPSE_NAMES_8
#undef GLIMPSE_NAMES_16
#undef GLIMPSE_NAMES_24
#undef GLIMPSE_NAMES_40
#undef GLIMPSE_NAMES_48
#undef GLIMPSE_ADD_FEW
#undef GLIMPSE_8
#undef GLIMPSE_32
#undef GLIMPSE_NAMES_32
#undef GLIMPSE_NAMES_64
#undef GLIMPSE_NAMES_80
#undef GLIMPSE_ADD_ROWS
#undef GLIMPSE_ADD_COLUMNS_128
#undef GLIMPSE_ADD_COLUMNS_64

/// Two values in one register, `x` in its lower half.
template <class T>
__device__ inline std::uint32_t both(float x, float y) {
  std::uint32_t made = 0;
  if constexpr (__is_same(T, __nv_bfloat16)) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(y), "f"(x));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(y), "f"(x));
  }
  return made;
}
__device__ inline void store_16_bytes(std::uint32_t to, const uint4& values) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(values.x), "r"(values.y), "r"(values.z),
               "r"(values.w)
               : "memory");
}

/// What this thread wrote to shared memory is seen by products that others begin after a barrier.
__device__ inline void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// A barrier in shared memory that `count` arrivals pass. Its turns alternate between parity 0 and 1.
__device__ inline void make_turns(std::uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void arrive(std::uint32_t barrier) {
  asm volatile("{.reg .b64 turn; mbarrier.arrive.shared::cta.b64 turn, [%0];}" ::"r"(barrier) : "memory");
}
/// Arrives, and says how many bytes are to come.
__device__ inline void arrive_expecting(std::uint32_t barrier, int bytes) {
  asm volatile("{.reg .b64 turn; mbarrier.arrive.expect_tx.shared::cta.b64 turn, [%0], %1;}" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline bool is_over(std::uint32_t barrier, int parity) {
  int over = 0;
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(over)
               : "r"(barrier), "r"(parity)
               : "memory");
  return over != 0;
}
/// For a thread may sleep so long before it looks again: who waits takes no turns from those who work.
inline constexpr std::uint32_t kLongNanoseconds = 1000000;
__device__ inline void wait_turn(std::uint32_t barrier, int parity) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, %2;\n"
      "@!p bra again;}" ::"r"(barrier),
      "r"(parity), "r"(kLongNanoseconds)
      : "memory");
}

/// Barriers of the hardware among `threads` threads; 0 is __syncthreads.
__device__ inline void meet(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/// meet(), and whether one of those who met said yes.
__device__ inline bool any_of(int number, int threads, bool yes) {
  int any = 0;
  asm volatile(
      "{\n.reg .pred own, all;\n"
      "setp.ne.s32 own, %3, 0;\n"
      "bar.red.or.pred all, %1, %2, own;\n"
      "selp.s32 %0, 1, 0, all;\n}"
      : "=r"(any)
      : "r"(number), "r"(threads), "r"(static_cast<int>(yes))
      : "memory");
  return any != 0;
}
__device__ inline void pass_on(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace glimpse::kernels::cuda
