// Real pickles for tests, and a handler that reads them without knowing torch: storages are leaves, tensors inert objects.
#pragma once

#include <string>
#include <vector>

#include "formats/codec/pickle_reader.h"
#include "formats/codec/pickle_writer.h"

namespace fsdpctl {

struct NamedPickle {
  std::string name;                    // the file that it is from
  std::string bytes;
};

// protocol<N>.pkl, the data.pkl of the archives and the .metadata files of tests/data.
std::vector<NamedPickle> protocol_pickles();
std::vector<NamedPickle> archive_pickles();
std::vector<NamedPickle> metadata_pickles();

// Storages become Value::storage; as an emitter it writes them back as they were named.
class StorageIds : public PickleHandler, public TensorEmitter {
 public:
  Value persistent(const Value& id) override;
  void storage(TensorIndex index, std::string_view storage_class, PickleWriter& out) override;

 private:
  std::vector<Value> ids_;
};

Value read_pickle_of(const NamedPickle& pickle, StorageIds& ids);
std::string write_pickle(const Value& value, TensorEmitter& emitter);

}  // namespace fsdpctl
