#include "tools/verify_command.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "lib/base/checksum.h"
#include "lib/base/file.h"
#include "lib/ckpt/lock.h"
#include "tools/command_line.h"
#include "tools/difference_text.h"
#include "tools/engine_session.h"
#include "tools/junit.h"
#include "tools/open_input.h"
#include "tools/output_path.h"
#include "tools/size_text.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kMostLockBytes = 1ull << 30;

SmallFile lock_file(const VerifyCommandOptions& options) {
  return {options.write_lock, "an older lock file", [](std::string_view head) { return looks_like_lock(head); }};
}

SmallFile junit_file(const VerifyCommandOptions& options) {
  return {options.junit, "an older report", [](std::string_view head) { return looks_like_junit(head); }};
}

void check_file(const SmallFile& file, const VerifyCommandOptions& options, const Context& context) {
  check_parent(file.path);
  for (const std::string& path : options.paths) check_apart(file.path, path, context.formats);
  check_replaceable(file);
}

void check(const VerifyCommandOptions& options, const Context& context) {
  if (options.force && options.write_lock.empty() && !options.write_manifest) {
    throw Error(Exit::usage, "option needs another one").key("--force").saw("--write-lock or --write-manifest", "neither");
  }
  if (!options.write_lock.empty()) {
    if (options.paths.size() > 1) {
      throw Error(Exit::usage, "a lock file is of one checkpoint")
          .key("--write-lock")
          .saw("one CKPT", std::to_string(options.paths.size()));
    }
    check_file(lock_file(options), options, context);
    if (!options.force && stat_path(options.write_lock).kind != FileKind::absent) {
      throw Error(Exit::usage, "output exists").at(options.write_lock).try_(command_with(context, {"--force"}));
    }
  }
  if (!options.junit.empty()) check_file(junit_file(options), options, context);
  if (!options.junit.empty() && options.junit == options.write_lock) {
    throw Error(Exit::usage, "two outputs have the same name").at(options.junit);
  }
}

// What a checkpoint shall be compatible with: a lock file as it is, or another checkpoint's.
Lock read_expectation(const VerifyCommandOptions& options, const Context& context) {
  if (stat_path(options.against).kind == FileKind::file) {
    FileHandle file = FileHandle::open_read(options.against);
    std::string head(64, '\0');
    head.resize(file.read_some(0, std::as_writable_bytes(std::span(head))));
    if (looks_like_lock(head)) return parse_lock(read_text(options.against, kMostLockBytes), options.against);
  }
  FindingSink sink;
  return lock_of(open_input(context, options.against, sink, options.follow_links).checkpoint);
}

Exit compare(const std::string& path, const Lock& lock, const Lock& expected, const VerifyCommandOptions& options,
             Printer& printer) {
  const std::vector<Difference> differences = compare_locks(expected, lock);
  printer.record("compatibility", {{"checkpoint", path},
                                   {"against", options.against},
                                   {"compatible", differences.empty()},
                                   {"differences", differences.size()}});
  printer.text(fmt::format(
      "{}: {} with {}", printer.paint(Style::strong, visible(path)),
      differences.empty()
          ? printer.paint(Style::good, "compatible")
          : printer.paint(Style::bad, fmt::format("not compatible ({})", count_text(differences.size(), "difference"))),
      visible(options.against)));
  print_differences(differences, printer, {"expected and not here", "not expected"});
  return differences.empty() ? Exit::ok : Exit::different;
}

Exit lock_checks(const std::string& path, const Lock* expected, const VerifyCommandOptions& options,
                 const Context& context) {
  if (expected == nullptr && options.write_lock.empty()) return Exit::ok;
  FindingSink sink;
  const Lock lock = lock_of(open_checkpoint(context.formats, path, sink, {options.follow_links}).checkpoint);
  if (!options.write_lock.empty()) {
    write_small_file(lock_file(options), lock_text(lock));
    context.printer.text(
        fmt::format("{}: written, {}", visible(options.write_lock), count_text(lock.rows.size(), "row")));
    context.printer.record("lock", {{"checkpoint", path}, {"path", options.write_lock}, {"rows", lock.rows.size()}});
  }
  return expected == nullptr ? Exit::ok : compare(path, lock, *expected, options, context.printer);
}

VerifyOptions verify_options(const VerifyCommandOptions& options, const EngineSession& session) {
  VerifyOptions how;
  how.data = options.data || options.count_nonfinite;
  how.count_nonfinite = options.count_nonfinite;
  how.engine = session.options();
  how.replace_manifest = options.force;
  how.open.follow_links = options.follow_links;
  return how;
}

void print_sealed(const std::string& path, const Manifest& manifest, Printer& printer) {
  printer.text(fmt::format("{}: sealed, {}, fingerprint {}", printer.paint(Style::strong, visible(path)),
                           count_text(manifest.tensors.size(), "tensor"), hex64(manifest.fingerprint)));
  printer.record(
      "manifest",
      {{"checkpoint", path}, {"tensors", manifest.tensors.size()}, {"fingerprint", hex64(manifest.fingerprint)}});
}

// Where nothing was there to be verified, that is an error and no result.
void throw_if_not_opened(const VerifyReport& report) {
  if (!report.format.empty()) return;
  for (const Finding& finding : report.findings) {
    if (finding.severity == Severity::error && finding.code == Exit::failed) throw Error(finding);
  }
}

Exit verify_one(const std::string& path, const Lock* expected, const VerifyCommandOptions& options,
                const Context& context, std::vector<VerifyReport>& reports) {
  VerifyReport report;
  std::optional<Manifest> manifest;
  {
    EngineSession session(context.printer, options.write_manifest ? "seal" : "verify");
    const VerifyOptions how = verify_options(options, session);
    if (options.write_manifest) {
      manifest = write_manifest(context.formats, path, how, report);
    } else {
      report = verify(context.formats, path, how);
    }
  }
  for (Finding& finding : report.findings) {
    if (finding.severity == Severity::error) finding = with_own_command(std::move(finding), context);
  }
  reports.push_back(report);
  throw_if_not_opened(report);
  print_report(report, options.data || options.count_nonfinite || options.write_manifest,
               manifest.has_value(), context.printer);
  if (manifest) print_sealed(path, *manifest, context.printer);
  if (report.has_errors()) return report.exit_code();
  const Exit fits = lock_checks(path, expected, options, context);
  if (fits == Exit::different) {  // for the JUnit report
    reports.back().findings.push_back(error(fits, "not compatible").found_only("differences from " + options.against));
  }
  return fits;
}

void write_junit(const VerifyCommandOptions& options, const std::vector<VerifyReport>& reports) {
  if (!options.junit.empty()) write_small_file(junit_file(options), junit_text(reports));
}

Run declare(CLI::App& app, const FormatList&) {
  auto options = std::make_shared<VerifyCommandOptions>();
  app.add_option("CKPT", options->paths, "checkpoint directory or file, or a run directory (its newest complete step)")
      ->required();
  app.add_flag("--data", options->data, "read every byte: checksums of manifest and ZIP members, replicas equal");
  app.add_flag("--count-nonfinite", options->count_nonfinite, "count NaN and Inf in each tensor (reads the data)");
  app.add_flag("--write-manifest", options->write_manifest,
               "seal a checkpoint that has no manifest: read all data and add fsdpctl.manifest.json (of a single file X: "
               "X.fsdpctl.json) beside it");
  app.add_option("--against", options->against,
                 "names, dtypes and shapes must be those of this checkpoint or lock file")
      ->type_name("CKPT|LOCK");
  app.add_option("--write-lock", options->write_lock, "write names, dtypes and shapes to a file for --against")
      ->type_name("FILE");
  app.add_option("--junit", options->junit, "also write a JUnit report, replacing an older one")->type_name("FILE");
  app.add_flag("--force", options->force, "replace an existing lock file or manifest");
  app.add_flag("--follow-links", options->follow_links, "follow symbolic links that lead out of the checkpoint");
  return [options](const Context& context) { return run_verify(*options, context); };
}

}  // namespace

Exit run_verify(const VerifyCommandOptions& options, const Context& context) {
  check(options, context);
  std::optional<Lock> expected;
  if (!options.against.empty()) expected = read_expectation(options, context);
  Exit result = Exit::ok;
  uint64_t failed = 0;
  std::vector<VerifyReport> reports;
  for (const std::string& path : options.paths) {
    Exit code = Exit::ok;
    const size_t before = reports.size();
    try {
      code = verify_one(path, expected ? &*expected : nullptr, options, context, reports);
    } catch (const Error& e) {
      if (e.code() == Exit::interrupted || e.code() == Exit::terminated) throw;
      if (reports.size() == before) reports.emplace_back().path = path;
      if (!reports.back().has_errors()) reports.back().findings.push_back(e.finding());
      if (options.paths.size() == 1) {
        write_junit(options, reports);
        throw;
      }
      context.printer.error(e);
      code = e.code();
    }
    failed += code != Exit::ok ? 1 : 0;
    result = worse(result, code);
  }
  write_junit(options, reports);
  context.printer.record("summary", {{"schema_version", 1}, {"checkpoints", options.paths.size()}, {"failed", failed}});
  return result;
}

Command verify_command() {
  return {"verify",
          "check that a checkpoint is whole and undamaged",
          "CKPT...",
          "Checks a checkpoint and reports everything that is wrong, not only the first thing. Always: files and "
          "sizes, every element of "
          "every tensor exactly once, headers and pickles of every item, agreement of replicas' metadata, optimizer "
          "fields that share "
          "bytes, stale files. With --data every byte: the manifest's checksums, the CRC-32s that ZIP members record, "
          "replicas equal.\n\n"
          "A checkpoint without a manifest can be whole and still not hold the bytes that were saved: what is not "
          "recorded is said to be "
          "not recorded. --write-manifest seals it, so that later damage shows; that file is the only thing that "
          "fsdpctl ever adds to an input.",
          {{"fsdpctl verify --data step-1200", "before deleting the copy"},
           {"fsdpctl verify --write-manifest step-1200", "record checksums now"},
           {"fsdpctl verify --against model.lock step-1200", "in CI: does it still fit the model?"}},
          {{0, "no damage found; compatible. Warnings do not count"},
           {1, "--against: not compatible"},
           {2, "used wrongly; a manifest or lock file is there already"},
           {3, "damaged or incomplete"},
           {4, "refused: ambiguous which checkpoint is meant"},
           {5, "not recognised, not supported, or unsafe content"},
           {6, "not found, or could not be read"},
           {130, "interrupted (143 by SIGTERM)"}},
          declare};
}

}  // namespace fsdpctl
