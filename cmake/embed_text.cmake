# cmake -DOUT=file.cpp -DIN=file.html -DNAMESPACE=a::b -DNAME=kPage -P embed_text.cmake: a text file as a constant string.
include(${CMAKE_CURRENT_LIST_DIR}/literal.cmake)
file(READ ${IN} content)
cpp_literal(literal "${content}")
file(WRITE ${OUT} "// Made by cmake/embed_text.cmake.
namespace ${NAMESPACE} {
extern const char* const ${NAME};
const char* const ${NAME} =
${literal};
}  // namespace ${NAMESPACE}
")
