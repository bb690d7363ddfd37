# cmake -DOUT=file.cpp -DMACHINE=cpu "-DHEADERS=a;b" -P embed.cmake: text files as string literals, by the name that others include
# them by: their path below kernels/common, kernels/cpu or kernels/cuda.
include(${CMAKE_CURRENT_LIST_DIR}/literal.cmake)
set(text "// Made by cmake/embed.cmake.\n#include \"runtime/${MACHINE}/dialect_files.h\"\n\nnamespace obelisk::runtime::${MACHINE} {\nconst DialectFile kDialectFiles[] = {\n")
foreach(header ${HEADERS})
  string(REGEX REPLACE "^.*/kernels/[a-z]+/" "" name ${header})
  file(READ ${header} content)
  cpp_literal(literal "${content}")
  set(text "${text}{\"${name}\", \n${literal}")
  set(text "${text}},\n")
endforeach()
set(text "${text}};\nconst int kDialectFileCount = sizeof kDialectFiles / sizeof kDialectFiles[0];\n}  // namespace obelisk::runtime::${MACHINE}\n")
file(WRITE ${OUT} "${text}")
