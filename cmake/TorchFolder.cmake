# Sets torch_dir to the folder of an installed torch package: TESSERA_TORCH, or else the package in .venv. If both are
# missing, torch_dir is empty.
set(torch_dir "${TESSERA_TORCH}")
if(NOT torch_dir AND DEFINED ENV{TESSERA_TORCH})
  set(torch_dir "$ENV{TESSERA_TORCH}")
endif()
if(NOT torch_dir)
  file(GLOB candidates ${tessera_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(candidates)
    list(GET candidates 0 torch_dir)
  endif()
endif()
