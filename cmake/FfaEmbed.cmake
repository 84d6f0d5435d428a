# Embeds files as C arrays: those of templates/ and cache/schema.sql in the library, as the tables of
# src/base/embedded.h, and, from src/cli, cache/models.json in the command, as the table of
# src/cli/presets.h. Included, this file sets FFA_EMBEDDED to the C file that the build generates for
# the library. Run as a script (cmake -P), it writes such a file, so no tool besides CMake is needed.
if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  # Arguments: OUT, FILES (a list) and, for the library, SCHEMA; without it the files are presets.
  # Texts are written as bytes, because a string literal would need escapes and has a maximum length.
  set(arrays "")
  set(rows "")
  set(index 0)
  function(ffa_byte_array name file)
    file(READ ${file} hex HEX)
    string(LENGTH "${hex}" digits)
    math(EXPR bytes "${digits} / 2")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," list "${hex}")
    set(bytes ${bytes} PARENT_SCOPE)
    set(arrays "${arrays}static const unsigned char ${name}[] = { ${list}0 };\n" PARENT_SCOPE)
  endfunction()
  foreach(file IN LISTS FILES)
    get_filename_component(name ${file} NAME)
    ffa_byte_array(text_${index} ${file})
    string(APPEND rows "    { \"${name}\", (const char *)text_${index}, ${bytes} },\n")
    math(EXPR index "${index} + 1")
  endforeach()
  if(NOT SCHEMA)
    file(WRITE ${OUT}.new "/* Written by cmake/FfaEmbed.cmake. */
#include \"cli/presets.h\"

${arrays}
const struct preset_file preset_files[] = {
${rows}};
const int preset_file_count = ${index};
")
    file(RENAME ${OUT}.new ${OUT})
    return()
  endif()
  ffa_byte_array(schema ${SCHEMA})
  file(WRITE ${OUT}.new "/* Written by cmake/FfaEmbed.cmake. */
#include \"base/embedded.h\"

${arrays}
const struct embedded_file embedded_templates[] = {
${rows}};
const int embedded_template_count = ${index};
const struct embedded_file embedded_schema = { \"schema.sql\", (const char *)schema, ${bytes} };
")
  file(RENAME ${OUT}.new ${OUT})
  return()
endif()

file(GLOB ffa_templates CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/templates/*.cu
     ${PROJECT_SOURCE_DIR}/templates/*.h ${PROJECT_SOURCE_DIR}/templates/*.def)
list(SORT ffa_templates COMPARE STRING)
set(FFA_EMBEDDED ${PROJECT_BINARY_DIR}/generated/embedded.c)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/generated)
add_custom_command(OUTPUT ${FFA_EMBEDDED}
  COMMAND ${CMAKE_COMMAND} -DOUT=${FFA_EMBEDDED} "-DFILES=${ffa_templates}"
          -DSCHEMA=${PROJECT_SOURCE_DIR}/cache/schema.sql -P ${PROJECT_SOURCE_DIR}/cmake/FfaEmbed.cmake
  DEPENDS ${ffa_templates} ${PROJECT_SOURCE_DIR}/cache/schema.sql
          ${PROJECT_SOURCE_DIR}/cmake/FfaEmbed.cmake
  COMMENT "Embedding templates" VERBATIM)
