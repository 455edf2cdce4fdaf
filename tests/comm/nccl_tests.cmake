# Tests of stores of processes, and the test bodies of comm with one process for each GPU.
if(NOT TARGET tessera_rendezvous_store)
  return()
endif()
add_executable(test_rendezvous_store rendezvous/store/tcp_store_test.cpp rendezvous/store/stranger_test.cpp)
target_link_libraries(test_rendezvous_store PRIVATE tessera_rendezvous_store torch_test_main GTest::gmock)
use_stranger(test_rendezvous_store)
add_test(NAME rendezvous_store COMMAND test_rendezvous_store)

if(NOT TESSERA_CUDA)
  return()
endif()
add_executable(test_comm_nccl comm/nccl/main.cpp comm/nccl/pushes_test.cpp comm/nccl/failures_test.cpp comm/nccl/graphs_test.cpp comm/ranks.cpp comm/collectives_test.cpp
  comm/redistribution_test.cpp comm/ordered_addition_test.cpp comm/run_together_test.cpp comm/board_test.cpp shard/nccl/plane_pushes_test.cpp
  shard/cast_masters_test.cpp comm/nccl/staging_test.cpp runtime/nccl/departed_step_test.cpp runtime/nccl/two_domains_test.cpp)
target_link_libraries(test_comm_nccl PRIVATE tessera_runtime tessera_rendezvous_store GTest::gtest GTest::gmock)
add_test(NAME comm_nccl COMMAND test_comm_nccl)
add_test(NAME comm_nccl_host_memory COMMAND test_comm_nccl --gtest_filter=Collectives/*:CollectiveOrder.Operations*)
set_tests_properties(comm_nccl_host_memory PROPERTIES ENVIRONMENT TESSERA_TEST_MEMORY=host)
set_tests_properties(comm_nccl comm_nccl_host_memory PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 RUN_SERIAL ON)
# This test also runs without a device.
add_executable(test_comm_watchdog comm/nccl/watchdog_test.cpp comm/nccl/store_exchange_test.cpp)
target_link_libraries(test_comm_watchdog PRIVATE tessera_comm GTest::gtest_main)
add_test(NAME comm_watchdog COMMAND test_comm_watchdog)
