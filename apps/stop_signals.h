// Handlers of the signals that ask a training run to stop.
#pragma once

namespace tessera::apps {

// The line on stderr that acknowledges the first stop request. A launcher sends the same signal if another rank has
// ended. The run then cannot save, so a rank of a launcher prints `saves_if_all_run`.
enum class Acknowledgement { none, saves, saves_if_all_run };

// While an object exists, the first stop request (rendezvous/stop_requests.h) is only recorded and acknowledged. A
// second request ends the process at once, as the signal does by default. A signal that this process was started to
// ignore stays ignored. At most one object exists at a time.
class StopSignals {
 public:
  explicit StopSignals(Acknowledgement kind);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Returns whether a request has arrived since the process started.
  static bool is_stop_requested();
};

}  // namespace tessera::apps
