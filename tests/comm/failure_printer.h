// What ranks that are processes print of the tests that all of them run.
#pragma once
#include <gtest/gtest.h>

#include <iostream>

namespace tessera::comm {

class FailurePrinter final : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) std::cerr << "rank " << rank_ << ": " << result.summary() << "\n";
  }

 private:
  int rank_;
};

// Rank 0 prints everything, the others their failures: else all would stand there once a rank.
inline void print_failures_only_unless_first(int rank) {
  if (rank == 0) return;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailurePrinter(rank));
}

}  // namespace tessera::comm
