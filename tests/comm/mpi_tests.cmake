# Runs the test bodies of comm with processes under mpirun as ranks, and tests failures of such ranks.
if(NOT MPI_CXX_FOUND OR TESSERA_SANITIZE)
  return()
endif()
execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE mpi_version ERROR_QUIET)
set(mpi_run ${MPIEXEC_EXECUTABLE})
if(mpi_version MATCHES "Open MPI|OpenRTE")
  list(APPEND mpi_run --allow-run-as-root --oversubscribe --bind-to none)
endif()

# Up to 4 ranks use all types; 5 to 8 ranks use bf16 and fp32.
function(comm_mpi_test ranks filter)
  add_test(NAME comm_mpi_${ranks} COMMAND ${mpi_run} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:test_comm>
    --gtest_filter=${filter}:CollectiveOrder.*:Redistribute.*:OrderedAddition.*:RunTogether.*:Boards.*)
  set_tests_properties(comm_mpi_${ranks} PROPERTIES ENVIRONMENT TESSERA_TEST_BACKEND=mpi TIMEOUT 300)
endfunction()
comm_mpi_test(4 Collectives/*)
comm_mpi_test(8 Collectives/3.*:Collectives/4.*)

add_executable(test_comm_mpi comm/mpi/failures.cpp)
target_link_libraries(test_comm_mpi PRIVATE tessera_comm MPI::MPI_CXX)
foreach(scenario stop deadlock other-operation other-operation-unchecked other-count-unchecked other-groups
    after-a-failure drain)
  add_test(NAME comm_mpi_${scenario} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/mpi/run_failure.sh ${scenario}
    $<TARGET_FILE:test_comm_mpi> ${mpi_run} ${MPIEXEC_NUMPROC_FLAG} 3)
  set_tests_properties(comm_mpi_${scenario} PROPERTIES TIMEOUT 90)
endforeach()
foreach(scenario stop-at-start stop-at-end)
  add_test(NAME comm_mpi_${scenario} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/mpi/run_stopped.sh ${scenario}
    $<TARGET_FILE:test_comm_mpi> ${mpi_run} ${MPIEXEC_NUMPROC_FLAG} 3)
  set_tests_properties(comm_mpi_${scenario} PROPERTIES TIMEOUT 90)
endforeach()
