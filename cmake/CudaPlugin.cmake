# The CUDA plug-in, built by nvcc directly: CMake 3.25 does not know CUDA's C++20, and asking it for the language would add
# seconds to every configuration. Without nvcc the plug-in is left out; everything else is the same.
option(FSDPCTL_WITH_CUDA "Build the CUDA plug-in, if there is an nvcc" ON)
if(NOT FSDPCTL_WITH_CUDA)
  return()
endif()
set(FSDPCTL_CUDA_ARCHITECTURES 80 90 100 CACHE STRING "GPU architectures of the plug-in; PTX of the last one for newer ones")
set(toolkit $ENV{XDG_CACHE_HOME})
if(NOT toolkit)
  set(toolkit $ENV{HOME}/.cache)
endif()
# Where scripts/setup.sh puts it if the machine has none.
find_program(FSDPCTL_NVCC nvcc HINTS ENV CUDA_PATH PATH_SUFFIXES bin
             PATHS /usr/local/cuda/bin ${toolkit}/fsdpctl/cuda-13.0/nvidia/cu13/bin)

if(NOT FSDPCTL_NVCC)
  message(NOTICE "CUDA plug-in: left out, there is no nvcc (scripts/setup.sh cuda installs it)")
  return()
endif()
execute_process(COMMAND ${FSDPCTL_NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
if(NOT nvcc_version MATCHES "release ([0-9]+\\.[0-9]+)" OR CMAKE_MATCH_1 VERSION_LESS 13.0)
  message(NOTICE "CUDA plug-in: left out, ${FSDPCTL_NVCC} is not nvcc 13.0 or newer")
  return()
endif()
message(STATUS "CUDA plug-in: ${FSDPCTL_NVCC}")

set(architectures)
foreach(architecture ${FSDPCTL_CUDA_ARCHITECTURES})
  list(APPEND architectures -gencode arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(GET FSDPCTL_CUDA_ARCHITECTURES -1 newest)
list(APPEND architectures -gencode arch=compute_${newest},code=compute_${newest})

# -fmad=false: each operation rounds once, as on the CPU; what is fused says so.
set(nvcc_flags -std=c++20 -O3 -fmad=false -I ${PROJECT_SOURCE_DIR} "-Werror=all-warnings"
    -Xcompiler=-Wall,-Wextra,-Werror,-fPIC,-fvisibility=hidden)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND nvcc_flags -ccbin ${CMAKE_CXX_COMPILER})
endif()

set(plugin ${PROJECT_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR}/libfsdpctl_cuda.so)
set(objects)
foreach(source launch plugin)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
  add_custom_command(OUTPUT ${object} DEPFILE ${object}.d DEPENDS cuda/${source}.cu VERBATIM
                     COMMAND ${FSDPCTL_NVCC} ${nvcc_flags} ${architectures} -MD -MF ${object}.d -MT ${object}
                             -c ${CMAKE_CURRENT_SOURCE_DIR}/cuda/${source}.cu -o ${object}
                     COMMENT "Building CUDA object ${source}.o")
  list(APPEND objects ${object})
endforeach()
add_custom_command(OUTPUT ${plugin} DEPENDS ${objects} VERBATIM
                   COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR}
                   COMMAND ${FSDPCTL_NVCC} ${architectures} -shared -cudart static ${objects} -o ${plugin}
                           -Xlinker --no-undefined -Xlinker --exclude-libs=ALL
                   COMMENT "Linking CUDA plug-in libfsdpctl_cuda.so")
add_custom_target(fsdpctl_cuda ALL DEPENDS ${plugin})
install(FILES ${plugin} DESTINATION ${CMAKE_INSTALL_LIBDIR} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
        GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
