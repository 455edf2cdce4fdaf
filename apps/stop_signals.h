// Handlers of the signals that ask a training run to stop.
#pragma once

namespace tessera::apps {

// While an object exists, the first stop request (rendezvous/stop_requests.h) is only recorded, and a line on stderr
// acknowledges it. A second request ends the process at once, as the signal does by default. A signal that this process
// was started to ignore stays ignored. At most one object exists at a time.
class StopSignals {
 public:
  // `acknowledges`: whether this process prints the line.
  explicit StopSignals(bool acknowledges);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Returns whether a request has arrived since the process started.
  static bool is_stop_requested();
};

}  // namespace tessera::apps
