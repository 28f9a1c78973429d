#include "formats/hdf5_child.h"

#include <hdf5.h>

#include <cstdlib>

namespace fsdpctl {

Hdf5Id open_hdf5(const std::string& path) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  H5PLset_loading_state(0);   // filters are code: none is loaded from wherever HDF5_PLUGIN_PATH points
  ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);
  Hdf5Id file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (!file) throw hdf5_damage("opening the file", "");
  return file;
}

Error hdf5_damage(std::string_view doing, const std::string& path) {
  return Error(Exit::damaged, "HDF5 library cannot read").key(path).found_only(std::string(doing));
}

}  // namespace fsdpctl
