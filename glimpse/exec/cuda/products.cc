#include "glimpse/exec/cuda/products.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "glimpse/base/error.h"

namespace glimpse::exec::cuda {
namespace {

// What cuBLAS's interface calls these (cublas_api.h, library_types.h).
constexpr int kSuccess = 0;
constexpr int kPlain = 0, kTransposed = 1;
constexpr int kBf16 = 14, kFloat = 0;
constexpr int kSumsInFloat = 68;
constexpr int kAnyAlgorithm = -1;

using kernels::cuda::Bf16;

/// Weights that are bf16 at a time: enough for a product to fill the device.
constexpr std::size_t kScratch = std::size_t{64} << 20;

/// What Hopper's products want; older ones want less.
constexpr std::size_t kWorkspace = std::size_t{32} << 20;

constexpr std::array kNames{"libcublas.so.13", "libcublas.so.12", "libcublas.so"};

void require(int status, const char* doing) {
  if (status != kSuccess) throw InternalError(fmt::format("cuBLAS, {}: status {}", doing, status));
}

}  // namespace

struct Products::Library {
  void* file = nullptr;
  void* handle = nullptr;
  int (*create)(void**) = nullptr;
  int (*destroy)(void*) = nullptr;
  int (*set_stream)(void*, void*) = nullptr;
  int (*set_workspace)(void*, void*, std::size_t) = nullptr;
  int (*multiply)(void* handle, int transposed_a, int transposed_b, int m, int n, int k, const void* alpha,
                  const void* a, int a_type, int a_stride, const void* b, int b_type, int b_stride, const void* beta,
                  void* c, int c_type, int c_stride, int sums, int algorithm) = nullptr;
  kernels::cuda::Memory workspace;

  ~Library() {
    if (handle != nullptr) destroy(handle);
    if (file != nullptr) dlclose(file);
  }
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(file, name));
    if (function == nullptr) {
      throw UserError(fmt::format("cuBLAS has no function {}; install the one that comes with CUDA 12 or 13", name));
    }
  }
};

Products::Products(kernels::cuda::Stream& stream) : stream_(stream), library_(std::make_unique<Library>()) {
  Library& library = *library_;
  for (const char* name : kNames) {
    library.file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library.file != nullptr) break;
  }
  if (library.file == nullptr) {
    throw UserError(
        "there is no cuBLAS (libcublas.so.13 or .12), which multiplies matrices on the GPU; install CUDA's libraries "
        "and name their folder in LD_LIBRARY_PATH, or leave out --device");
  }
  library.find(library.create, "cublasCreate_v2");
  library.find(library.destroy, "cublasDestroy_v2");
  library.find(library.set_stream, "cublasSetStream_v2");
  library.find(library.set_workspace, "cublasSetWorkspace_v2");
  library.find(library.multiply, "cublasGemmEx");
  stream.make_current();
  if (library.create(&library.handle) != kSuccess) {
    library.handle = nullptr;
    throw UserError("cuBLAS does not start on this device; its memory may be full: end other programs on it");
  }
  library.workspace = kernels::cuda::Memory(stream, kWorkspace);
  require(library.set_stream(library.handle, stream.raw()), "setting the stream");
  require(library.set_workspace(library.handle, library.workspace.raw(), kWorkspace), "setting the workspace");
}

Products::~Products() = default;

std::size_t Products::scratch_bytes() {
  return kScratch * sizeof(Bf16);
}

void Products::multiply(const Matrix& weight, Input in, int rows, kernels::cuda::DevicePointer<float> out) {
  float* to = out.raw();
  for (const MatrixPart& part : weight.parts) {
    const Shape shape{part.outputs, weight.inputs, rows, weight.outputs};
    if (is_wide(part, rows) || part.takes(rows)) {
      multiply_part(part, rows, {.in = in, .out = to, .stride = shape.stride});
    } else if (part.in_rows()) {
      multiply_bf16(part.bf16(), in, shape, to);
    } else {
      multiply_packed(part, in, shape, to);
    }
    to += part.outputs;
  }
}

void Products::multiply_part(const MatrixPart& part, int rows, kernels::cuda::FewRowsOp op) {
  using kernels::cuda::kPackedRows;
  using End = kernels::cuda::FewRowsOp::End;
  const bool wide = is_wide(part, rows);
  const int most = wide ? most_wide_rows(stream_, part.packed.layout) : kernels::cuda::kPackedFewRows;
  op.weight = part.packed;
  const auto inputs = static_cast<std::size_t>(part.packed.layout.inputs);
  const auto outputs = static_cast<std::size_t>(part.outputs);
  const std::size_t of_out = op.end == End::store ? static_cast<std::size_t>(op.stride) : outputs;
  const std::size_t of_narrow = op.end == End::gate ? outputs / 2 : outputs;
  const auto on = [](auto& pointer, std::size_t by) {
    if (pointer) pointer = pointer.raw() + by;
  };
  for (int row = 0; row < rows; row += most) {
    op.rows = std::min(most, rows - row);
    wide ? multiply_wide_rows(stream_, wide_space(), op) : multiply_few_rows(stream_, op);
    const auto done = static_cast<std::size_t>(op.rows);
    on(op.in, done * inputs);
    on(op.out, done * of_out);
    on(op.narrow, done * of_narrow);
    on(op.squares_left, done * (outputs / kPackedRows));
    on(op.squares, done * static_cast<std::size_t>(op.width / kPackedRows));
  }
}

void Products::multiply_as(const Matrix& weight, int rows, kernels::cuda::FewRowsOp op) {
  check(op.end == kernels::cuda::FewRowsOp::End::store || weight.parts.size() == 1,
        "one part, or sums that are stored");
  op.stride = weight.outputs;
  for (const MatrixPart& part : weight.parts) {
    multiply_part(part, rows, op);
    if (op.out) op.out = op.out.raw() + part.outputs;
  }
}

const kernels::cuda::Array<float>& Products::wide_space() {
  if (wide_.size() == 0) wide_ = kernels::cuda::make_wide_space(stream_);
  return wide_;
}

bool Products::gates(const Matrix& weight, int rows) const {
  return weight.parts.size() == 1 && (weight.takes(rows) || is_wide(weight.parts.front(), rows));
}

bool Products::divides(const Matrix& weight, int rows) const {
  return std::all_of(weight.parts.begin(), weight.parts.end(), [&](const MatrixPart& part) {
    if (is_wide(part, rows)) return rows <= most_normed_wide_rows(part.packed.layout);
    return part.takes(rows) && rows <= kMostNormedRows;
  });
}

bool Products::adds(const Matrix& weight, int rows) const {
  if (weight.parts.size() > 1 || weight.outputs % kernels::cuda::kPackedRows != 0 || !divides(weight, rows))
    return false;
  const MatrixPart& part = weight.parts.front();
  return !is_wide(part, rows) || kernels::cuda::wide_rows_add(stream_, part.packed.layout);
}

void Products::multiply_packed(const MatrixPart& part, Input in, const Shape& shape, float* out) {
  const auto inputs = static_cast<std::size_t>(shape.inputs);
  if (scratch_.size() == 0) scratch_ = kernels::cuda::Array<Bf16>(stream_, kScratch);
  const int slice = static_cast<int>(kScratch / inputs) / kernels::cuda::kPackedRows * kernels::cuda::kPackedRows;
  check(slice > 0, "room for a block row of weights");
  for (int first = 0; first < shape.outputs; first += slice) {
    const int count = std::min(slice, shape.outputs - first);
    unpack(stream_, {part.packed, first, count, scratch_.pointer()});
    multiply_bf16(scratch_.constant(), in, {count, shape.inputs, shape.rows, shape.stride}, out + first);
  }
}

void Products::multiply_bf16(Input weight, Input in, const Shape& shape, float* out) {
  // Its matrices are column by column: the weight is [inputs, outputs] to it, and the result [outputs, rows].
  const float one = 1;
  const float zero = 0;
  require(library_->multiply(library_->handle, kTransposed, kPlain, shape.outputs, shape.rows, shape.inputs, &one,
                             weight.raw(), kBf16, shape.inputs, in.raw(), kBf16, shape.inputs, &zero, out, kFloat,
                             shape.stride, kSumsInFloat, kAnyAlgorithm),
          "multiplying");
}

}  // namespace glimpse::exec::cuda
