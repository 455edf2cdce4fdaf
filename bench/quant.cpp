// Measures the kernels of number formats on a GPU and, in the same run, a copy of the same number of bytes on the
// device.
//
//   bench_quant [ROWS COLS [ONLY]]     a weight of ROWS x COLS (4096 x 14336); only kernels whose name contains ONLY
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tessera/base/cuda_check.h"
#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/quant/cuda_table.h"
#include "tessera/quant/formats/decoded.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/formats/hadamard.h"
#include "tessera/quant/formats/swizzle.h"

namespace {

using namespace tessera;
using quant::bfloat16;
using quant::DType;
using quant::Encoding;
using quant::Extent;

constexpr base::Device kDevice = base::cuda_device(0);
constexpr double kMinBytes = 600e6;  // bytes of all buffers that the calls use in rotation: ten times the cache
constexpr int kRepetitions = 21;
constexpr std::size_t kBusyBytes = std::size_t{1} << 30;  // copied first, while the host enqueues the calls

double bytes_of(std::int64_t count, double each = 1) {
  return static_cast<double>(count) * each;
}

// A call with its own buffers.
using Call = std::function<void()>;

struct Case {
  std::string name;
  double bytes = 0;  // each input read once, each output written once
  std::function<Call()> prepare;
};

class Bench {
 public:
  Bench(Extent matrix, std::string only) : matrix_(matrix), only_(std::move(only)) {
    std::mt19937 random(1);
    std::vector<float> values(static_cast<std::size_t>(matrix.elements()));
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = i < (1 << 20) ? normal(random) : values[i - (1 << 20)] * (i % 3 == 0 ? 1.01F : 0.99F);
    base::copy_bytes(values_.data(), values.data(), values_.size());
    table_.cast(values_.data(), DType::fp32, rounded_.data(), DType::bf16, matrix.elements(), nullptr);
  }

  void run() {
    fmt::print("{} x {}; bytes: each input read once, each output written once\n\n{:32} {:>9} {:>9} {:>8} {:>8}\n",
               matrix_.rows, matrix_.cols, "kernel", "MB", "us", "GB/s", "of copy");
    for (const DType type : {DType::fp32, DType::bf16})
      for (const quant::Format format : kFormats) master_cast(format, type);
    for (const bool decoded : {false, true})
      for (const quant::Format format : kFormats) {
        dequantize(quant::weight_encoding(format), name_of(format), 1, decoded);
        if (matrix_.rows % (kMatrices * quant::kBlockCast) == 0)
          dequantize(quant::weight_encoding(format), name_of(format), kMatrices, decoded);
      }
    operands();
    for (const quant::Format format : {quant::Format::fp8, quant::Format::fp8_block, quant::Format::nvfp4})
      columnwise(format);
    for (const bool both : {false, true}) activations(both);
    for (const DType type : {DType::fp32, DType::bf16}) amaxes(type);
    scales(quant::Format::mxfp8);
    scales(quant::Format::nvfp4);
  }

 private:
  static constexpr quant::Format kFormats[] = {quant::Format::fp8, quant::Format::fp8_block, quant::Format::mxfp8,
                                               quant::Format::nvfp4};
  static constexpr std::int64_t kMatrices = 8;  // the weight is also unpacked as a stack of this many matrices

  static std::shared_ptr<base::Buffer> room(double bytes) {
    return std::make_shared<base::Buffer>(static_cast<std::size_t>(bytes), kDevice);
  }
  // Returns a copy of the values.
  std::shared_ptr<base::Buffer> source(DType type) const {
    const base::Buffer& values = type == DType::fp32 ? values_ : rounded_;
    auto buffer = room(bytes_of(static_cast<std::int64_t>(values.size())));
    base::copy_bytes(buffer->data(), values.data(), values.size());
    return buffer;
  }
  static std::shared_ptr<base::Buffer> multiplier_and_amax() {
    const float numbers[] = {3, 0};
    auto buffer = room(sizeof numbers);
    base::copy_bytes(buffer->data(), numbers, sizeof numbers);
    return buffer;
  }
  // A quantized weight, written by the kernels under test.
  struct Weight {
    std::shared_ptr<base::Buffer> codes, scales, amax;
    quant::Quantized view() const {
      return {
          .data = codes->as<std::uint8_t>().data(), .scales = scales->data(), .tensor_amax = amax->as<float>().data()};
    }
  };
  double code_bytes(const Encoding& encoding) const {
    return bytes_of(quant::data_bytes(encoding.element, matrix_.elements()));
  }
  std::int64_t tiles(const Encoding& encoding) const { return quant::scale_extent(encoding, matrix_).elements(); }
  double scale_bytes(const Encoding& encoding) const {
    return bytes_of(tiles(encoding)) * static_cast<double>(size_of(quant::scale_type(encoding.scale)));
  }
  Weight weight(const Encoding& encoding) const {
    constexpr double kNumbers = kMatrices * sizeof(float);  // a stack has a scale and an amax for each matrix
    return {.codes = room(code_bytes(encoding)),
            .scales = room(std::max(scale_bytes(encoding), kNumbers)),
            .amax = room(kNumbers)};
  }
  std::shared_ptr<quant::MasterCast> cast_of(const Encoding& encoding, const Weight& weight, const void* data,
                                             DType type) const {
    const quant::Quantized view = weight.view();
    const quant::MasterSlice slice{.source = {.data = data, .type = type},
                                   .matrix = matrix_,
                                   .encoding = encoding,
                                   .slice = {0, matrix_.elements()},
                                   .data = view.data,
                                   .tiles = {0, tiles(encoding)},
                                   .scales = view.scales,
                                   .tensor_amax = view.tensor_amax};
    return quant::make_master_cast({&slice, 1}, kDevice, nullptr);
  }
  Weight filled_weight(const Encoding& encoding) const {
    const Weight result = weight(encoding);
    const auto cast = cast_of(encoding, result, rounded_.data(), DType::bf16);
    cast->compute_amaxes();
    cast->cast();
    TESSERA_CUDA_CHECK(cudaDeviceSynchronize());
    return result;
  }

  void master_cast(quant::Format format, DType type);
  void dequantize(const Encoding& encoding, std::string_view format, std::int64_t matrices, bool decoded);
  void operands();
  void operand_amaxes();
  void operand(const std::string& name, const quant::OperandCast& of, bool kept_columns);
  void columnwise(quant::Format format);
  void activations(bool columnwise);
  void amaxes(DType type);
  void scales(quant::Format format);

  static double seconds(const std::vector<Call>& calls);
  void measure(const Case& one);

  const Extent matrix_;
  const std::string only_;
  const quant::CudaTable& table_ = quant::require_cuda("bench_quant");
  base::Buffer values_{static_cast<std::size_t>(matrix_.elements()) * sizeof(float), kDevice};
  base::Buffer rounded_{static_cast<std::size_t>(matrix_.elements()) * sizeof(bfloat16), kDevice};
  base::Buffer busy_{kBusyBytes, kDevice};
};

void Bench::master_cast(quant::Format format, DType type) {
  const Encoding encoding = quant::weight_encoding(format);
  const double in = bytes_of(matrix_.elements(), static_cast<double>(size_of(type)));
  const double amaxes = bytes_of(tiles(encoding), sizeof(float));
  const std::string name = std::string(name_of(format)) + " of " + std::string(name_of(type));
  const auto prepare = [=, this](bool cast) {
    return [=, this]() -> Call {
      const auto data = source(type);
      const Weight target = weight(encoding);
      const auto work = cast_of(encoding, target, data->data(), type);
      work->compute_amaxes();
      if (cast) return [=] { (void)data, (void)target, work->cast(); };
      return [=] { (void)data, (void)target, work->compute_amaxes(); };
    };
  };
  // The amaxes are cleared and then written.
  measure({"master amaxes, " + name, in + 2 * amaxes, prepare(false)});
  // The amaxes are read; the multipliers are written, then read.
  measure({"master cast, " + name, in + code_bytes(encoding) + scale_bytes(encoding) + 3 * amaxes, prepare(true)});
}

void Bench::dequantize(const Encoding& encoding, std::string_view format, std::int64_t matrices, bool decoded) {
  const double out = bytes_of(matrix_.elements(), sizeof(bfloat16));
  const std::string name = std::string(decoded ? "decode" : "dequantize") + (matrices == 1 ? ", " : " stack, ");
  measure({name + std::string(format), code_bytes(encoding) + scale_bytes(encoding) + out, [=, this]() -> Call {
             const Weight from = filled_weight(encoding);
             const auto to = room(out);
             return [=, this] {
               const quant::Dequantization task{.source = from.view(),
                                                .matrix = {.rows = matrix_.rows / matrices, .cols = matrix_.cols},
                                                .encoding = encoding,
                                                .target = to->as<bfloat16>().data(),
                                                .matrices = matrices,
                                                .decoded = decoded};
               table_.dequantize({&task, 1}, nullptr);
             };
           }});
}

void Bench::operands() {
  const Encoding nvfp4 = quant::input_encoding(quant::Format::nvfp4),
                 mxfp8 = quant::input_encoding(quant::Format::mxfp8);
  operand_amaxes();
  operand("operand, nvfp4", {.encoding = nvfp4}, false);
  operand("operand, nvfp4, transform", {.encoding = nvfp4, .transform = true}, false);
  operand("operand, nvfp4, transform, random", {.encoding = nvfp4, .transform = true, .rounding = {.key = {1, 2}}},
          false);
  operand("operand, nvfp4, kept columns", {.encoding = nvfp4, .transform = true}, true);
  operand("operand, nvfp4, squares", {.encoding = quant::weight_encoding(quant::Format::nvfp4)}, false);
  operand("operand, mxfp8", {.encoding = mxfp8}, false);
  operand("operand, mxfp8, kept columns", {.encoding = mxfp8}, true);
  dequantize(quant::by_columns(nvfp4), "kept nvfp4 columns", 1, true);
  dequantize(quant::by_columns(mxfp8), "kept mxfp8 columns", 1, true);
}

void Bench::operand_amaxes() {
  measure(
      {"operand amaxes, transform", bytes_of(matrix_.elements(), sizeof(bfloat16)), [=, this]() -> Call {
         const auto from = source(DType::bf16), amaxes = multiplier_and_amax();
         amaxes->fill_zero();
         return [=, this] {
           const auto to = amaxes->as<float>();
           table_.take_operand_amaxes(
               {.source = from->as<bfloat16>().data(), .matrix = matrix_, .rows = to.data(), .columns = to.data() + 1},
               nullptr);
         };
       }});
}

// `of` has the encoding, and a key if values are rounded stochastically.
void Bench::operand(const std::string& name, const quant::OperandCast& of, bool kept_columns) {
  const bool random = of.rounding.key != base::PhiloxKey{}, squares = of.encoding.tile.rows > 1;
  const Extent wide = of.transform ? quant::transformed_extent(matrix_) : matrix_;
  const double values = bytes_of(matrix_.elements(), sizeof(bfloat16)), decoded = bytes_of(wide.elements(), 2);
  const Encoding across = quant::by_columns(of.encoding);
  const double codes = bytes_of(quant::data_bytes(across.element, wide.elements())),
               scales = bytes_of(quant::scale_extent(across, wide).elements());
  const double columns = squares ? 0 : kept_columns ? codes + scales : decoded;
  measure({name, 2 * values + columns, [=, this]() -> Call {
             const auto from = source(DType::bf16), rows = room(values), cols = room(decoded), kept = room(codes),
                        kept_scales = room(scales), numbers = multiplier_and_amax(), step = room(sizeof(std::int64_t));
             step->fill_zero();
             quant::OperandCast cast = of;
             cast.source = from->as<bfloat16>().data();
             cast.matrix = matrix_;
             cast.rounding.step = random ? step->as<std::int64_t>().data() : nullptr;
             cast.rows = {.whole = numbers->as<float>().data(), .decoded = rows->as<bfloat16>().data()};
             if (!squares) cast.columns.whole = cast.rows.whole;
             if (!squares && !kept_columns) cast.columns.decoded = cols->as<bfloat16>().data();
             if (kept_columns)
               cast.columns.stored = {.data = kept->as<std::uint8_t>().data(), .scales = kept_scales->data()};
             return [=, this] {
               (void)from, (void)rows, (void)cols, (void)kept, (void)kept_scales, (void)numbers, (void)step,
                   table_.cast_operand(cast, nullptr);
             };
           }});
}

void Bench::columnwise(quant::Format format) {
  const Encoding encoding = quant::weight_encoding(format);
  measure({"columnwise, " + std::string(name_of(format)), 2 * (code_bytes(encoding) + scale_bytes(encoding)),
           [=, this]() -> Call {
             const Weight from = filled_weight(encoding), to = weight(encoding);
             return [=, this] {
               const quant::Transposition task{
                   .source = from.view(), .matrix = matrix_, .encoding = encoding, .target = to.view()};
               table_.create_columnwise({&task, 1}, nullptr);
             };
           }});
}

void Bench::activations(bool columnwise) {
  const std::string suffix = columnwise ? ", both orders" : ", rowwise";
  const Extent padded{.rows = base::align_up(matrix_.rows, 16), .cols = base::align_up(matrix_.cols, 16)};
  const double in = bytes_of(matrix_.elements(), sizeof(bfloat16)), codes = bytes_of(padded.elements());
  const double block_scales = bytes_of(padded.elements(), sizeof(float)) / quant::kBlockCast;
  const double copies = columnwise ? 2 : 1;
  measure({"fp8 cast and amax" + suffix, in + copies * codes, [=, this]() -> Call {
             const auto from = source(DType::bf16), rows = room(codes), cols = room(codes),
                        numbers = multiplier_and_amax();
             return [=, this] {
               table_.cast_fp8({.source = from->as<bfloat16>().data(),
                                .matrix = matrix_,
                                .padded = padded,
                                .multiplier = numbers->as<float>().data(),
                                .rowwise = rows->as<std::uint8_t>().data(),
                                .columnwise = columnwise ? cols->as<std::uint8_t>().data() : nullptr,
                                .amax = numbers->as<float>().data() + 1},
                               nullptr);
             };
           }});
  measure({"fp8 blocks" + suffix, in + copies * (codes + block_scales), [=, this]() -> Call {
             const auto from = source(DType::bf16), rows = room(codes), cols = room(codes);
             const auto row_scales = room(bytes_of(padded.rows * base::align_up(padded.cols, 128) / 128, 4));
             const auto col_scales = room(bytes_of(padded.cols * base::align_up(padded.rows, 128) / 128, 4));
             return [=, this] {
               table_.cast_blocks({.source = from->as<bfloat16>().data(),
                                   .matrix = matrix_,
                                   .padded = padded,
                                   .rowwise = rows->as<std::uint8_t>().data(),
                                   .rowwise_scales = row_scales->as<float>().data(),
                                   .columnwise = columnwise ? cols->as<std::uint8_t>().data() : nullptr,
                                   .columnwise_scales = col_scales->as<float>().data()},
                                  nullptr);
             };
           }});
}

void Bench::amaxes(DType type) {
  measure({"amax of " + std::string(name_of(type)), bytes_of(matrix_.elements(), static_cast<double>(size_of(type))),
           [=, this]() -> Call {
             const auto from = source(type), amax = room(sizeof(float));
             amax->fill_zero();
             return [=, this] {
               const quant::AmaxTask task{.source = {.data = from->data(), .type = type},
                                          .elements = matrix_.elements(),
                                          .amax = amax->as<float>().data()};
               table_.take_amaxes({&task, 1}, nullptr);
             };
           }});
}

void Bench::scales(quant::Format format) {
  const Encoding encoding = quant::weight_encoding(format);
  const double padded_bytes = bytes_of(quant::padded_scale_extent(encoding, matrix_).elements());
  const std::string name = std::string(name_of(format));
  measure({"pad scales, " + name, scale_bytes(encoding) + padded_bytes, [=, this]() -> Call {
             const auto from = room(scale_bytes(encoding)), to = room(padded_bytes);
             return [=, this] {
               table_.pad_scales(from->as<std::uint8_t>().data(), matrix_, encoding, to->as<std::uint8_t>().data(),
                                 nullptr);
             };
           }});
  measure({"swizzle scales, " + name, 2 * padded_bytes, [=, this]() -> Call {
             const auto from = room(padded_bytes), to = room(padded_bytes);
             return [=, this] {
               table_.swizzle_scales(from->as<std::uint8_t>().data(), matrix_, encoding, to->as<std::uint8_t>().data(),
                                     nullptr);
             };
           }});
}

// Returns a call's median seconds over the repetitions. Each repetition runs all calls. The device is kept busy before.
double Bench::seconds(const std::vector<Call>& calls) {
  cudaEvent_t begin = nullptr, end = nullptr;
  TESSERA_CUDA_CHECK(cudaEventCreate(&begin));
  TESSERA_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<double> seconds;
  for (int i = 0; i < kRepetitions + 2; ++i) {
    calls.front()();
    TESSERA_CUDA_CHECK(cudaEventRecord(begin, nullptr));
    for (std::size_t call = 1; call < calls.size(); ++call) calls[call]();
    TESSERA_CUDA_CHECK(cudaEventRecord(end, nullptr));
    TESSERA_CUDA_CHECK(cudaEventSynchronize(end));
    float milliseconds = 0;
    TESSERA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (i >= 2) seconds.push_back(static_cast<double>(milliseconds) * 1e-3 / static_cast<double>(calls.size() - 1));
  }
  TESSERA_CUDA_CHECK(cudaEventDestroy(begin));
  TESSERA_CUDA_CHECK(cudaEventDestroy(end));
  std::ranges::nth_element(seconds, seconds.begin() + kRepetitions / 2);
  return seconds[kRepetitions / 2];
}

void Bench::measure(const Case& one) {
  if (one.name.find(only_) == std::string::npos) return;
  const int sets = static_cast<int>(std::clamp(kMinBytes / one.bytes + 1, 2.0, 64.0));
  const auto half = kBusyBytes / 2;
  const Call busy = [this, half] {
    TESSERA_CUDA_CHECK(cudaMemcpyAsync(busy_.data(), busy_.data() + half, half, cudaMemcpyDeviceToDevice, nullptr));
  };
  std::vector<Call> calls{busy}, copies{busy};
  for (int set = 0; set < sets; ++set) {
    calls.push_back(one.prepare());
    const auto from = room(one.bytes / 2), to = room(one.bytes / 2);
    copies.push_back([from, to] {
      TESSERA_CUDA_CHECK(cudaMemcpyAsync(to->data(), from->data(), to->size(), cudaMemcpyDeviceToDevice, nullptr));
    });
  }
  TESSERA_CUDA_CHECK(cudaDeviceSynchronize());
  const double own = seconds(calls), copy = seconds(copies);
  fmt::print("{:32} {:>9.1f} {:>9.1f} {:>8.0f} {:>7.0f}%\n", one.name, one.bytes / 1e6, own * 1e6,
             one.bytes / own / 1e9, 100 * copy / own);
  std::fflush(stdout);
}

std::int64_t number_from(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1)
    throw InputError("expected a number of at least 1, got '{}'", text);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 2 || argc > 4) throw InputError("expected [ROWS COLS [ONLY]]");
    const Extent matrix{.rows = argc > 2 ? number_from(argv[1]) : 4096,
                        .cols = argc > 2 ? number_from(argv[2]) : 14336};
    if (base::cuda_device_count() == 0) throw InputError("no CUDA device here");
    base::set_device(kDevice);
    Bench(matrix, argc > 3 ? argv[3] : "").run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_quant: %s\n", error.what());
    return 1;
  }
}
