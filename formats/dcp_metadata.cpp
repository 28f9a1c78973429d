#include "formats/dcp_metadata.h"

#include <optional>

#include "formats/codec/pickle_scan.h"
#include "formats/dcp_fold.h"
#include "formats/dcp_machine.h"

namespace fsdpctl {
namespace {

// nullopt: the pickle fetches something that was not kept.
std::optional<DcpMetadata> fold(const ByteWindow::Read& read, uint64_t size, const std::string& name, const FetchedMemo* fetched, FindingSink& sink) {
  constexpr size_t kDims = 2;                    // of a size, mostly
  CellStore store;
  if (fetched != nullptr) store.reserve(kDims * fetched->slots());   // most of what is held are sizes
  NameTable names(kDcpWords, size / 400);
  DcpFold meaning(store, names, size);
  ByteWindow window(read, size);
  CellMachine machine(store, names, meaning, window, fetched);
  try {
    const std::optional<Cell> result = machine.run();
    if (!result) return std::nullopt;
    return meaning.finish(*result, machine.protocol(), name, sink);
  } catch (const Error& e) {
    Finding finding = e.finding();
    if (finding.where.path.empty()) finding.at(name).offset(machine.offset());
    throw Error(std::move(finding));
  }
}

}  // namespace

DcpMetadata read_dcp_metadata(const DcpRead& read, uint64_t size, const std::string& name, FindingSink& sink) {
  if (size == 0) throw Error(Exit::damaged, "metadata is empty").at(name).saw("a pickle", "0 bytes");
  if (std::optional<DcpMetadata> metadata = fold(read, size, name, nullptr, sink)) return *std::move(metadata);
  const PickleScan scan = scan_pickle(read, size, name);
  return fold(read, size, name, &scan.fetched, sink).value();
}

}  // namespace fsdpctl
