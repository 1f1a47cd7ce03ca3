# Target docs: the reference of all headers, with the pages of docs/, by Doxygen, in <build>/docs/html. Any warning
# fails it. Formulas are set by MathJax, from this machine where it is installed, else from the network when a page is
# read.
find_program(KIMIK3_DOXYGEN doxygen)
find_path(KIMIK3_MATHJAX MathJax.js PATHS /usr/share/javascript/mathjax)
mark_as_advanced(KIMIK3_DOXYGEN KIMIK3_MATHJAX)
if(NOT KIMIK3_DOXYGEN)
    add_custom_target(docs VERBATIM
        COMMAND ${CMAKE_COMMAND} -E echo "the target docs needs Doxygen (Debian: apt-get install doxygen libjs-mathjax)"
        COMMAND ${CMAKE_COMMAND} -E false)
    return()
endif()

set(KIMIK3_DOCS_INPUT "${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/docs")
if(KIMIK3_MATHJAX)
    set(KIMIK3_MATHJAX_FOLDER file://${KIMIK3_MATHJAX})
else()
    set(KIMIK3_MATHJAX_FOLDER https://cdn.jsdelivr.net/npm/mathjax@2)
endif()
configure_file(cmake/Doxyfile.in Doxyfile @ONLY)
add_custom_target(docs VERBATIM
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${PROJECT_BINARY_DIR}/docs
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/docs
    COMMAND ${KIMIK3_DOXYGEN} ${PROJECT_BINARY_DIR}/Doxyfile
    COMMAND ${CMAKE_COMMAND} -E echo "${PROJECT_BINARY_DIR}/docs/html/index.html")
