#include "tessera/base/process/output_stream.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string_view>
#include <system_error>

#include "tessera/base/error.h"

namespace tessera::base {

OutputStream::OutputStream(int descriptor, int buffering) : descriptor_(descriptor) {
  constexpr cookie_io_functions_t functions{.read = nullptr, .write = write, .seek = nullptr, .close = nullptr};
  stream_ = ::fopencookie(this, "w", functions);
  if (stream_ == nullptr) throw Error("cannot create a stream: {}", std::generic_category().message(errno));
  std::setvbuf(stream_, nullptr, buffering, BUFSIZ);
}

OutputStream::~OutputStream() {
  std::fclose(stream_);
}

void OutputStream::finish() {
  flush();
  const std::string_view rest = std::string_view(held_).substr(sent_);
  if (const int code = write_all(rest.data(), rest.size()); code != 0) record_failure(code);
  held_.clear();
  sent_ = 0;
}

std::string OutputStream::failure() const {
  const int code = failure_;
  return code == 0 ? "" : std::generic_category().message(code);
}

// Called by stdio. Returns the number of bytes even after a failure, because otherwise writers would see an error.
ssize_t OutputStream::write(void* self, const char* data, std::size_t bytes) {
  auto* const stream = static_cast<OutputStream*>(self);
  const int code = stream->holds_ ? stream->hold(data, bytes) : stream->write_all(data, bytes);
  if (code != 0) stream->record_failure(code);
  return static_cast<ssize_t>(bytes);
}

// Returns 0 or the system's code of a failure.
int OutputStream::write_all(const char* data, std::size_t bytes) const {
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, data, bytes);
    if (written >= 0) {
      data += written;
      bytes -= static_cast<std::size_t>(written);
    } else if (errno == EAGAIN) {
      pollfd reader{.fd = descriptor_, .events = POLLOUT, .revents = 0};
      ::poll(&reader, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

// Adds the text to the held text, and writes as much as the descriptor takes. Returns 0 or the code of a failure.
int OutputStream::hold(const char* data, std::size_t bytes) {
  if (const int code = write_held(); code != 0) return code;
  if (held_.size() - sent_ + bytes > kMaxHeld) return ENOBUFS;
  held_.append(data, bytes);
  return write_held();
}

// Writes held text while the descriptor takes it without waiting. Returns 0 or the system's code of a failure.
int OutputStream::write_held() {
  while (sent_ < held_.size()) {
    pollfd reader{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    if (::poll(&reader, 1, 0) <= 0) break;
    // A pipe that is ready takes PIPE_BUF bytes without waiting.
    const ssize_t written =
        ::write(descriptor_, held_.data() + sent_, std::min<std::size_t>(held_.size() - sent_, PIPE_BUF));
    if (written < 0 && errno != EINTR && errno != EAGAIN) {
      const int code = errno;
      held_.clear();
      sent_ = 0;
      return code;
    }
    if (written < 0) break;
    sent_ += static_cast<std::size_t>(written);
  }
  if (sent_ > held_.size() / 2) {
    held_.erase(0, sent_);
    sent_ = 0;
  }
  return 0;
}

void OutputStream::record_failure(int code) {
  int none = 0;
  if (failure_.compare_exchange_strong(none, code) && on_failure_) on_failure_(failure());
}

}  // namespace tessera::base
