// A stdio stream that records its first failed write.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>

namespace tessera::base {

// Writers of the stream get no errors, so the owner calls finish() and failure() at the end. The stream waits for a
// slow reader, also if the descriptor does not block. After hold_for_slow_readers() it holds the text instead. Any
// thread may write.
class OutputStream {
 public:
  // `descriptor` stays open when the object is destroyed. `buffering` is a mode of std::setvbuf. Throws Error if the
  // stream cannot be created.
  OutputStream(int descriptor, int buffering);
  ~OutputStream();
  OutputStream(const OutputStream&) = delete;
  OutputStream& operator=(const OutputStream&) = delete;

  std::FILE* stream() const { return stream_; }
  // Sets a function that is called once, with the reason, when a write fails. The writing thread calls it. Call
  // on_failure before the first write.
  void on_failure(std::function<void(const std::string&)> action) { on_failure_ = std::move(action); }
  // From now on, writes return at once if the reader of a pipe or terminal is slow. The stream holds up to kMaxHeld
  // bytes and tries again with the next write. More text than that is lost, which is a failure. Call it before the
  // first write.
  void hold_for_slow_readers() { holds_ = true; }
  static constexpr std::size_t kMaxHeld = std::size_t{4} << 20;
  // Writes the buffered output.
  void flush() { std::fflush(stream_); }
  // Writes the buffered and the held output, and waits for the reader. No other thread may write any more.
  void finish();
  // Returns the system's reason of the first failed write, or an empty text. Later writes are tried anyway.
  std::string failure() const;

 private:
  static ssize_t write(void* self, const char* data, std::size_t bytes);
  int write_all(const char* data, std::size_t bytes) const;
  int hold(const char* data, std::size_t bytes);
  int write_held();
  void record_failure(int code);

  const int descriptor_;
  bool holds_ = false;
  std::string held_;  // the descriptor has taken the first sent_ bytes
  std::size_t sent_ = 0;
  std::function<void(const std::string&)> on_failure_;
  std::atomic<int> failure_{0};  // the code of the system, or 0
  std::FILE* stream_;
};

}  // namespace tessera::base
