# k3_room(NAME DEPS room... PRIVATE library... SOURCES extra... EXCLUDE file... TEST_LIBS library...)
#
# A room is one folder under src/ and one static library. Its include root holds a link to that
# folder alone, so including a room that is not named in DEPS does not compile. Every *.cc of the
# folder belongs to the library, every *_test.cc to its test program, every *_fuzz.cc to a fuzzer
# of its own. Third-party libraries are PRIVATE: they never reach another room's headers.
function(k3_room name)
  cmake_parse_arguments(ROOM "" "" "DEPS;PRIVATE;SOURCES;EXCLUDE;TEST_LIBS" ${ARGN})
  set(dir ${CMAKE_CURRENT_SOURCE_DIR})
  set(root ${CMAKE_BINARY_DIR}/rooms/${name})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${dir} ${root}/${name} SYMBOLIC)

  file(GLOB_RECURSE all CONFIGURE_DEPENDS ${dir}/*.cc)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${dir} ${dir}/*.h)
  list(FILTER headers EXCLUDE REGEX "-inl\\.h$")
  list(TRANSFORM headers PREPEND ${root}/${name}/)
  set(sources ${all})
  list(FILTER sources EXCLUDE REGEX "(_test|_fuzz)\\.cc$")
  foreach(file ${ROOM_EXCLUDE})
    list(REMOVE_ITEM sources ${dir}/${file})
  endforeach()
  set(tests ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(fuzzers ${all})
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")

  add_library(k3_${name} STATIC ${sources} ${ROOM_SOURCES})
  target_sources(k3_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${root} FILES ${headers})
  set_target_properties(k3_${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  target_link_libraries(k3_${name} PUBLIC k3_options)
  foreach(dep ${ROOM_DEPS})
    target_link_libraries(k3_${name} PUBLIC k3_${dep})
  endforeach()
  target_link_libraries(k3_${name} PRIVATE ${ROOM_PRIVATE} fmt::fmt nlohmann_json::nlohmann_json)

  if(K3_BUILD_TESTS AND tests)
    add_executable(k3_${name}_test ${tests})
    target_link_libraries(k3_${name}_test PRIVATE k3_${name} ${ROOM_TEST_LIBS} ${ROOM_PRIVATE}
      fmt::fmt nlohmann_json::nlohmann_json GTest::gtest GTest::gtest_main)
    target_compile_definitions(k3_${name}_test PRIVATE K3_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    gtest_discover_tests(k3_${name}_test TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST
      PROPERTIES TIMEOUT 300)
  endif()
  if(K3_BUILD_FUZZERS)
    foreach(file ${fuzzers})
      get_filename_component(fuzzer ${file} NAME_WE)
      add_executable(${fuzzer} ${file})
      target_link_libraries(${fuzzer} PRIVATE k3_${name} ${ROOM_PRIVATE} fmt::fmt
        nlohmann_json::nlohmann_json)
      target_link_options(${fuzzer} PRIVATE -fsanitize=fuzzer)
    endforeach()
  endif()
endfunction()
