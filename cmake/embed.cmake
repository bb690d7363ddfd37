# cmake -DOUT=file.cpp -DMACHINE=cpu "-DHEADERS=a;b" -P embed.cmake: text files as string literals, by the name that others include
# them by: their path below kernels/common, kernels/cpu or kernels/cuda.
set(text "// Made by cmake/embed.cmake.\n#include \"runtime/${MACHINE}/dialect_files.h\"\n\nnamespace obelisk::runtime::${MACHINE} {\nconst DialectFile kDialectFiles[] = {\n")
foreach(header ${HEADERS})
  string(REGEX REPLACE "^.*/kernels/[a-z]+/" "" name ${header})
  file(READ ${header} content)
  # A literal holds at most 64 KiB of source; pieces are joined by the compiler.
  string(LENGTH "${content}" length)
  set(text "${text}{\"${name}\", \n")
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${content}" ${at} 8000 piece)
    set(text "${text}R\"obelisk(${piece})obelisk\"\n")
    math(EXPR at "${at} + 8000")
  endwhile()
  set(text "${text}},\n")
endforeach()
set(text "${text}};\nconst int kDialectFileCount = sizeof kDialectFiles / sizeof kDialectFiles[0];\n}  // namespace obelisk::runtime::${MACHINE}\n")
file(WRITE ${OUT} "${text}")
