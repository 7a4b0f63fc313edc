# The commit in `k3 --version`, taken anew at each build and written only when it changes.
add_custom_target(k3_commit
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${CMAKE_BINARY_DIR}/generated/k3_commit.h
          -P ${CMAKE_SOURCE_DIR}/cmake/write_commit.cmake
  BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/k3_commit.h)
