# Tests of quant that call CUDA's runtime themselves.
if(TESSERA_CUDA)
  target_sources(test_quant PRIVATE quant/cuda/exact_sum_graph_test.cpp quant/cuda/master_cast_graph_test.cpp)
endif()
