// What an HDF5 file holds, as its metadata says. HDF5's parser runs in a child process (formats/isolated.h): what comes
// back is plain numbers and texts, which the caller still has to check.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/dtype.h"
#include "lib/base/file.h"
#include "lib/base/finding.h"

namespace fsdpctl {

struct Hdf5Object {
  enum class Content : uint8_t {
    tensor,
    text,            // one string
    texts,           // a list of strings
    nothing,         // a dataset without a dataspace
    empty_group,
    unsupported,     // `text` says what its elements are
  };
  enum class Storage : uint8_t {
    contiguous,      // bytes at `offset`
    library,         // chunked, compact or never written: only HDF5 can give the bytes
  };
  std::string path;                        // link names joined by '/': "model/lin.weight"
  std::vector<std::string> names;          // the same as original names, one for each element
  uint64_t address = 0;                    // of the object: hard links to it have the same
  Content content = Content::unsupported;
  DType dtype = DType::uint8;
  bool swap = false;                       // big-endian
  std::vector<int64_t> shape;
  Storage storage = Storage::contiguous;
  uint64_t offset = 0;
  std::vector<std::string> texts;
};

struct Hdf5Scan {
  std::vector<Hdf5Object> objects;                               // in the order of their links
  std::vector<std::pair<std::string, std::string>> attributes;   // the root's, where they are texts
  std::vector<Finding> remarks;                                  // warnings: links that were not followed, attributes that are not read
};

// `path` is the file in the file system, `file_name` its name in messages. Error(damaged) where HDF5 cannot read it,
// Error(unsupported) for external storage, virtual datasets and filters that are not HDF5's own.
Hdf5Scan scan_hdf5(const std::string& path, const std::string& file_name);

// Reads datasets through the library into `spool`, row-major and in the file's byte order. Where is beside paths; the results too:
// empty where it went well.
struct Hdf5Read {
  std::string path;        // link names joined by '/'
  uint64_t spool_offset = 0;
  uint64_t length = 0;     // bytes
  std::vector<Finding> failure;   // one where it could not be read
};
void read_hdf5_datasets(const std::string& path, const std::string& file_name, FileHandle& spool, std::span<Hdf5Read> reads);

}  // namespace fsdpctl
