#include "tessera/runtime/replay/captured_lanes.h"

namespace tessera::runtime {

CapturedLanes::CapturedLanes(shard::ParallelGroups& parallel) : parallel_(parallel) {
  const auto capture = std::make_shared<const base::Capture>();
  parallel_.compute->capture(capture);
  const base::Fence begin = parallel_.compute->record();
  for_each([&](base::Lane& lane) {
    lane.capture(capture);
    lane.wait(begin);
  });
}

CapturedLanes::~CapturedLanes() {
  parallel_.compute->capture(nullptr);
  for_each([](base::Lane& lane) { lane.capture(nullptr); });
}

void CapturedLanes::join() {
  for_each([this](base::Lane& lane) { parallel_.compute->wait(lane.record()); });
}

void CapturedLanes::for_each(const std::function<void(base::Lane&)>& visit) {
  for (base::Lane* lane : parallel_.lanes()) visit(*lane);
}

}  // namespace tessera::runtime
