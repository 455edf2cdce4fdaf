// The output of tests whose ranks are processes that all run the whole test program.
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

// Rank 0 prints all results, and the other ranks print only their failures. Otherwise every result would appear once
// for each rank.
inline void print_failures_only_unless_first(int rank) {
  if (rank == 0) return;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailurePrinter(rank));
}

}  // namespace tessera::comm
