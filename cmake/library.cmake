# The installed library, from the rooms that make it, and the command.
set(KVT_LIBRARY_ROOMS codecs policy tiers estimator store)
set(KVT_LIBRARY_DEPS PkgConfig::ZSTD PkgConfig::URING PkgConfig::SQLITE PkgConfig::XXHASH
    PkgConfig::INIH Threads::Threads m)

set(library_objects)
foreach(room ${KVT_LIBRARY_ROOMS})
  if(TARGET kvt_${room})
    list(APPEND library_objects $<TARGET_OBJECTS:kvt_${room}>)
  endif()
endforeach()

add_library(kvterrace_static STATIC ${library_objects})
set_target_properties(kvterrace_static PROPERTIES OUTPUT_NAME kvterrace)
target_link_libraries(kvterrace_static PRIVATE kvt_flags PUBLIC ${KVT_LIBRARY_DEPS})

if(TARGET kvt_tools)
  add_executable(kvterrace_command $<TARGET_OBJECTS:kvt_tools>)
  set_target_properties(kvterrace_command PROPERTIES OUTPUT_NAME kvterrace)
  foreach(room replay bench)
    if(TARGET kvt_${room})
      target_sources(kvterrace_command PRIVATE $<TARGET_OBJECTS:kvt_${room}>)
    endif()
  endforeach()
  target_link_libraries(kvterrace_command PRIVATE kvterrace_static kvt_flags PkgConfig::JANSSON)
endif()
