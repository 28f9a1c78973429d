# FindLibTorch: the libraries of a PyTorch wheel, without its own CMake package (which wants a CUDA toolkit).
#
# Looks in LIBTORCH_ROOT (a variable of CMake or the environment): the directory that holds lib/ and include/, as the
# wheel's "torch" does. Otherwise where scripts/setup.sh puts it.
#
# Gives: LibTorch::cpu (libtorch_cpu and libc10), LibTorch_VERSION.
include(FindPackageHandleStandardArgs)

if(DEFINED ENV{XDG_CACHE_HOME})
  set(_libtorch_cache "$ENV{XDG_CACHE_HOME}/fsdpctl")
else()
  set(_libtorch_cache "$ENV{HOME}/.cache/fsdpctl")
endif()
if(LIBTORCH_ROOT)
  set(_libtorch_places "${LIBTORCH_ROOT}")
elseif(DEFINED ENV{LIBTORCH_ROOT})
  set(_libtorch_places "$ENV{LIBTORCH_ROOT}")
else()
  set(_libtorch_places "${_libtorch_cache}/libtorch-${LibTorch_FIND_VERSION}/torch")
endif()

# Not cached: another LIBTORCH_ROOT has to count at the next configuration.
unset(LibTorch_INCLUDE_DIR CACHE)
unset(LibTorch_CPU_LIBRARY CACHE)
unset(LibTorch_C10_LIBRARY CACHE)
find_path(LibTorch_INCLUDE_DIR torch/headeronly/version.h PATHS ${_libtorch_places} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS ${_libtorch_places} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS ${_libtorch_places} PATH_SUFFIXES lib NO_DEFAULT_PATH)
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY)

if(LibTorch_INCLUDE_DIR)
  file(STRINGS "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h" _libtorch_version
       REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" LibTorch_VERSION "${_libtorch_version}")
endif()

find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
                                  VERSION_VAR LibTorch_VERSION
                                  REASON_FAILURE_MESSAGE "scripts/setup.sh libtorch fetches it. Looked in ${_libtorch_places}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LibTorch_C10_LIBRARY}" IMPORTED_SONAME libc10.so)
  # The wheel brings headers of other projects along, an fmt of another version than ours among them. Searched last, they
  # hide nothing.
  set_target_properties(LibTorch::c10 PROPERTIES INTERFACE_COMPILE_OPTIONS
    "SHELL:-idirafter ${LibTorch_INCLUDE_DIR};SHELL:-idirafter ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  add_library(LibTorch::cpu SHARED IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES
    IMPORTED_LOCATION "${LibTorch_CPU_LIBRARY}" IMPORTED_SONAME libtorch_cpu.so INTERFACE_LINK_LIBRARIES LibTorch::c10)
endif()
unset(_libtorch_cache)
unset(_libtorch_places)
unset(_libtorch_version)
