#include "tessera/bench/links.h"

#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/device/stream_scope.h"
#include "tessera/ops/gemm/gemm.h"

namespace tessera::bench {
namespace {

// Products that keep the multiprocessors busy, on a separate lane.
class Products {
 public:
  Products(base::Device device, const LinkBench& bench)
      : device_(device), lane_(base::make_cuda_lane("products", device)) {
    const auto options = at::TensorOptions().device(ops::to_device(device)).dtype(at::kBFloat16);
    x_ = at::randn({bench.rows, bench.depth}, options);
    w_ = at::randn({bench.columns, bench.depth}, options);
    seconds(3);
    alone_ = seconds(20) / 20;
  }
  double alone() const { return alone_; }  // seconds per product
  base::Fence enqueue(int count) {
    const ops::StreamScope scope(device_, lane_->stream());
    for (int i = 0; i < count; ++i) ops::gemm_fprop(x_, w_);
    return lane_->record_timed();
  }
  base::Fence begin() { return lane_->record_timed(); }
  base::Lane& lane() { return *lane_; }

 private:
  double seconds(int count) {
    const base::Fence before = begin(), after = enqueue(count);
    after.synchronize();
    return after.seconds_since(before);
  }
  const base::Device device_;
  const std::unique_ptr<base::Lane> lane_;
  at::Tensor x_, w_;
  double alone_ = 0;
};

// All-gathers of one size over one group.
class Gathers {
 public:
  Gathers(comm::Communicator& group, std::int64_t bytes, bool pushes)
      : group_(group),
        pushes_(pushes),
        counts_(comm::equal_counts(group.size(), bytes)),
        sent_(static_cast<std::size_t>(bytes), group.kernels().device()),
        received_(static_cast<std::size_t>(bytes * group.size()), group.kernels().device()) {
    if (pushes)
      if (const std::string problem = group.share({received_.data(), received_.size()}); !problem.empty())
        throw Error("links: cannot copy into the memory of peers: {}", problem);
    enqueue(3).synchronize();
  }
  ~Gathers() {
    group_.lane().record().wait_until_done();
    try {
      if (pushes_) group_.share({});
    } catch (const Error&) {  // a rank failed, and its error has been thrown
    }
  }
  base::Fence begin() { return group_.lane().record_timed(); }
  base::Fence enqueue(int rounds) {
    for (int i = 0; i < rounds; ++i) group_.all_gather(sent_.data(), received_.data(), counts_, quant::DType::u8);
    return group_.lane().record_timed();
  }
  comm::Communicator& group() { return group_; }

 private:
  comm::Communicator& group_;
  const bool pushes_;
  const std::vector<std::int64_t> counts_;
  base::Buffer sent_, received_;
};

// Returns the seconds of the slowest rank.
double slowest(comm::Communicator& group, double seconds) {
  std::array<double, 1> value{seconds};
  group.all_reduce(value.data(), 1, quant::DType::fp64, comm::ReduceOp::max).synchronize();
  return value[0];
}

LinkRow measure(Gathers& gathers, Products& products, int rounds, std::int64_t bytes) {
  comm::Communicator& group = gathers.group();
  const double received = static_cast<double>(bytes) * (group.size() - 1) * rounds;
  group.barrier().synchronize();
  base::Fence before = gathers.begin(), after = gathers.enqueue(rounds);
  after.synchronize();
  const double alone = slowest(group, after.seconds_since(before));

  // The products take at least four times as long as the gathers, so they run during all gathers.
  const double product = slowest(
      group,
      products.alone());  // the time of the slowest rank, because all ranks must enqueue the same number of products
  const auto products_for = [&](double seconds) { return static_cast<int>(seconds / product) + 4; };
  group.barrier().synchronize();
  const base::Fence busy = products.enqueue(products_for(4 * alone));
  before = gathers.begin();
  after = gathers.enqueue(rounds);
  after.synchronize();
  const double beside = slowest(group, after.seconds_since(before));
  busy.synchronize();

  // The gathers must run longer than these products, so that all products run during gathers.
  const int count = products_for(alone / 2);
  const double round = alone / rounds;
  const int enough = static_cast<int>(3 * product * count / round) + rounds;
  group.barrier().synchronize();
  const base::Fence all = gathers.enqueue(enough);
  const base::Fence first = products.begin(), last = products.enqueue(count);
  last.synchronize();
  const double slower = slowest(group, last.seconds_since(first) / (count * products.alone()));
  all.synchronize();
  return {.bytes = bytes, .alone = received / alone, .beside = received / beside, .products_slower = slower};
}

}  // namespace

std::vector<LinkRow> link_rows(comm::World& world, const LinkBench& bench) {
  std::vector<int> everyone;
  for (int rank = 0; rank < world.size(); ++rank) everyone.push_back(rank);
  const auto by_push = world.make_group("push", {everyone}), by_nccl = world.make_group("nccl", {everyone});
  const base::Device device = by_nccl->kernels().device();
  if (device.kind != base::DeviceKind::cuda || world.size() < 2)
    throw InputError("bench links: expected at least 2 ranks with a GPU each, got {} on {}", world.size(),
                     world.backend());
  Products products(device, bench);
  std::vector<LinkRow> rows;
  for (const std::int64_t bytes : bench.bytes)
    for (const bool pushes : {true, false}) {
      Gathers gathers(pushes ? *by_push : *by_nccl, bytes, pushes);
      rows.push_back(measure(gathers, products, bench.rounds, bytes));
      rows.back().transport = pushes ? "push" : "nccl";
    }
  return rows;
}

std::string link_text(const std::vector<LinkRow>& rows) {
  std::string text = "all-gathers, received by each rank; with products running all the time\n";
  for (const LinkRow& row : rows)
    text += fmt::format("  {:5} {:5} MB a peer  alone {:6.1f} GB/s  beside products {:6.1f} GB/s  products x {:.3f}\n",
                        row.transport, row.bytes >> 20, row.alone / 1e9, row.beside / 1e9, row.products_slower);
  return text;
}

nlohmann::ordered_json link_json(const std::vector<LinkRow>& rows) {
  auto json = nlohmann::ordered_json::array();
  for (const LinkRow& row : rows)
    json.push_back({{"transport", row.transport},
                    {"bytes", row.bytes},
                    {"alone_bytes_per_second", row.alone},
                    {"beside_bytes_per_second", row.beside},
                    {"products_slower", row.products_slower}});
  return json;
}

}  // namespace tessera::bench
