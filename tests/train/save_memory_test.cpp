// Measures the device memory that a save needs in addition to training.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <thread>

#include "tessera/base/device.h"
#include "tessera/train/trainer_checkpoint.h"
#include "tests/train/training.h"

namespace tessera::train::testing {
namespace {

// Tracks the smallest free memory of a device during its lifetime.
class LeastFree {
 public:
  explicit LeastFree(base::Device device) : device_(device), least_(base::memory_of(device).free) {}
  ~LeastFree() { stop(); }
  LeastFree(const LeastFree&) = delete;
  LeastFree& operator=(const LeastFree&) = delete;

  std::int64_t stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
    return least_;
  }

 private:
  void watch() {
    base::set_device(device_);
    while (!stopped_) least_ = std::min<std::int64_t>(least_, base::memory_of(device_).free);
  }

  const base::Device device_;
  std::int64_t least_;
  std::atomic<bool> stopped_ = false;
  std::thread thread_{[this] { watch(); }};
};

// Returns the peak bytes of device memory that a save takes.
std::int64_t peak_of_save(quant::Format wire) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "tessera_save_memory";
  std::filesystem::remove_all(folder);
  models::DecoderConfig model = odd_model();
  model.hidden_size = 1024;
  model.intermediate_size = 4096;
  model.num_layers = 6;
  std::int64_t peak = 0;
  RunOptions options{
      .model = model, .dtype = quant::DType::bf16, .blocks = 1, .steps = 2, .on_gpu = true, .wire = wire};
  options.at_end = [&](Trainer& trainer) {
    trainer.parallel().compute->synchronize();
    const base::Device device = trainer.parallel().device;
    const std::int64_t before = base::memory_of(device).free;
    LeastFree least(device);
    save_trainer(trainer, folder, 2, nlohmann::json::object());
    peak = before - least.stop();
  };
  run(options);
  std::filesystem::remove_all(folder);
  return peak;
}

// The 18 large matrices take 144 MiB in bf16, 8 MiB each. A rounded weight is freed before the next one is made.
TEST(SaveOnCuda, NeedsTheMemoryOfOneWeight) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  constexpr std::int64_t mebibyte = 1 << 20;
  const std::int64_t plain = peak_of_save(quant::Format::bf16), encoded = peak_of_save(quant::Format::fp8);
  std::cout << "a save takes " << plain / mebibyte << " MiB with bf16 weights, " << encoded / mebibyte
            << " MiB with fp8 weights\n";
  EXPECT_LE(plain, 8 * mebibyte);
  EXPECT_LE(encoded, 24 * mebibyte);
}

}  // namespace
}  // namespace tessera::train::testing
