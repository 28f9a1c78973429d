#include "formats/dcp_metadata.h"

#include <optional>

#include "formats/dcp_fold.h"
#include "formats/dcp_machine.h"

namespace fsdpctl {
namespace {

// nullopt: the pickle refers to something that was not kept.
std::optional<DcpMetadata> fold(const ByteWindow::Read& read, uint64_t size, const std::string& name, bool keep_all, FindingSink& sink) {
  CellStore store;
  NameTable names(kDcpWords, size / 400);
  DcpFold meaning(store, names, size, keep_all);
  ByteWindow window(read, size);
  CellMachine machine(store, names, meaning, window, keep_all);
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
  if (std::optional<DcpMetadata> metadata = fold(read, size, name, false, sink)) return *std::move(metadata);
  return fold(read, size, name, true, sink).value();
}

}  // namespace fsdpctl
