# cmake -DOUT=file.cpp -DIN=file.html -DNAMESPACE=a::b -DNAME=kPage -P embed_text.cmake: a text file as a constant string.
# A literal holds at most 64 KiB of source; pieces are joined by the compiler.
file(READ ${IN} content)
string(LENGTH "${content}" length)
set(text "// Made by cmake/embed_text.cmake.\nnamespace ${NAMESPACE} {\nextern const char* const ${NAME};\nconst char* const ${NAME} =\n")
set(at 0)
while(at LESS length)
  string(SUBSTRING "${content}" ${at} 8000 piece)
  set(text "${text}R\"obelisk(${piece})obelisk\"\n")
  math(EXPR at "${at} + 8000")
endwhile()
file(WRITE ${OUT} "${text};\n}  // namespace ${NAMESPACE}\n")
