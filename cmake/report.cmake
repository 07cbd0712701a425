# SPDX-License-Identifier: Apache-2.0
# The page template of `kvterrace report` becomes a part of the command: report_part_page,
# report_part_style and report_part_script, arrays of bytes that end with 0. Included by the build,
# this file adds the rule; run as a script (cmake -D TARGET=... -D SOURCE=... -P), it writes them.
if(CMAKE_SCRIPT_MODE_FILE)
  set(text "/* Written by cmake/report.cmake. */\n")
  foreach(part page:page.html style:style.css
      script:chart.js,verdicts.js,hosts.js,runs.js,size.js,loop.js,measurements.js,kinds.js)
    string(REGEX MATCH "^([a-z]+):(.*)$" ignored ${part})
    set(name ${CMAKE_MATCH_1})
    string(REPLACE "," ";" files ${CMAKE_MATCH_2})
    set(bytes "")
    foreach(file ${files})
      file(READ ${SOURCE}/${file} hex HEX)
      string(APPEND bytes ${hex})
    endforeach()
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(APPEND text "extern const unsigned char report_part_${name}[];\n"
      "const unsigned char report_part_${name}[] = {${bytes}0};\n")
  endforeach()
  file(WRITE ${TARGET} "${text}")
  return()
endif()

set(report_source ${CMAKE_SOURCE_DIR}/tools/report)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/report_parts.c
  COMMAND ${CMAKE_COMMAND} -D TARGET=${CMAKE_BINARY_DIR}/report_parts.c -D SOURCE=${report_source}
    -P ${CMAKE_CURRENT_LIST_FILE}
  DEPENDS ${CMAKE_CURRENT_LIST_FILE} ${report_source}/page.html ${report_source}/style.css
    ${report_source}/chart.js ${report_source}/verdicts.js ${report_source}/hosts.js
    ${report_source}/runs.js ${report_source}/size.js ${report_source}/loop.js
    ${report_source}/measurements.js ${report_source}/kinds.js
  COMMENT "Putting the page template into the command")
target_sources(kvt_tools PRIVATE ${CMAKE_BINARY_DIR}/report_parts.c)
