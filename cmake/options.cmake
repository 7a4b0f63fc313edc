# Compiler and linker flags shared by every target. No -march=native and no fast-math: SIMD targets
# are chosen at run time, and contraction is off so that a fused multiply-add is always explicit.
add_library(k3_options INTERFACE)
target_compile_options(k3_options INTERFACE
  -ffp-contract=off -fno-math-errno -fvisibility=hidden
  # A designated initialiser leaves the other members at their defaults on purpose.
  -Wall -Wextra -Wno-missing-field-initializers -Wshadow -Wnon-virtual-dtor -Wimplicit-fallthrough -Wvla)
if(K3_WERROR)
  target_compile_options(k3_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports false positives on inlined vector code and std::string.
  target_compile_options(k3_options INTERFACE -Wno-maybe-uninitialized -Wno-restrict
    -Wno-stringop-overflow -Wno-array-bounds -Wno-psabi)
endif()
if(K3_SANITIZE)
  # Lines for the reports are enough: tracking every variable doubles the kernels' time to compile.
  target_compile_options(k3_options INTERFACE -fsanitize=${K3_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all -g1)
  target_link_options(k3_options INTERFACE -fsanitize=${K3_SANITIZE})
endif()
if(K3_BUILD_FUZZERS)
  target_compile_options(k3_options INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(k3_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

find_program(K3_CCACHE ccache)
if(K3_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${K3_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${K3_CCACHE})
endif()
find_program(K3_MOLD mold)
if(K3_MOLD)
  target_link_options(k3_options INTERFACE -fuse-ld=mold)
endif()
