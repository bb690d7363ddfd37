# obelisk_know_sources(FILES...)
#
# Tells those of the files that ask for it where the sources lie. On all files the definition would make objects
# differ from checkout to checkout, and a compiler cache could share none of them.
function(obelisk_know_sources)
  foreach(file ${ARGN})
    file(STRINGS ${file} asks REGEX "OBELISK_SOURCE_DIR|graph/test_cases.h" LIMIT_COUNT 1)
    if(asks)
      set_property(SOURCE ${file} APPEND PROPERTY COMPILE_DEFINITIONS
                   OBELISK_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    endif()
  endforeach()
endfunction()

# obelisk_room(NAME [ROOMS left rooms...] [LIBS third-party...])
#
# A room is a folder, a static library `obelisk_NAME`, and, from its test/*.cpp, one test program `NAME_test`
# whose cases carry the label NAME. Sources are globbed, so that adding a file is adding a file.
function(obelisk_room name)
  cmake_parse_arguments(ROOM "" "" "ROOMS;LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/test/")
  if(NOT sources)
    return()
  endif()
  add_library(obelisk_${name} STATIC ${sources})
  # The last two folders: texts that generated bodies include name each other from there.
  target_include_directories(obelisk_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include
                             ${PROJECT_SOURCE_DIR}/src/kernels/common ${PROJECT_SOURCE_DIR}/src/kernels/cuda)
  list(TRANSFORM ROOM_ROOMS PREPEND obelisk_)
  target_link_libraries(obelisk_${name} PUBLIC ${ROOM_ROOMS} fmt::fmt Threads::Threads ${ROOM_LIBS})
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  list(FILTER tests INCLUDE REGEX "/test/")
  if(OBELISK_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE obelisk_${name} GTest::gtest_main GTest::gmock)
    obelisk_know_sources(${tests})
    add_test(NAME ${name} COMMAND ${name}_test)
    set_tests_properties(${name} PROPERTIES LABELS ${name} TIMEOUT 2700)  # minutes when alone
  endif()
endfunction()
