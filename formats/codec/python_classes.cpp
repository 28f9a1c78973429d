#include "formats/codec/python_classes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "lib/base/dtype.h"

namespace fsdpctl {
namespace {

using Role = PythonRole;

// Top-level modules of Python itself, of every release from 2.7 to 3.14. Sorted.
constexpr std::string_view kPythonModules[] = {
    "BaseHTTPServer", "Bastion", "CGIHTTPServer", "ConfigParser", "Cookie", "DocXMLRPCServer", "HTMLParser", "Queue",
    "SimpleHTTPServer", "SimpleXMLRPCServer", "SocketServer", "StringIO", "Tkinter", "UserDict", "UserList",
    "UserString", "__builtin__", "__future__", "_abc", "_abcoll", "_aix_support", "_ast", "_asyncio", "_bisect",
    "_blake2", "_bootlocale", "_bootsubprocess", "_bz2", "_codecs", "_codecs_cn", "_codecs_hk", "_codecs_iso2022",
    "_codecs_jp", "_codecs_kr", "_codecs_tw", "_collections", "_collections_abc", "_colorize", "_compat_pickle",
    "_compression", "_contextvars", "_crypt", "_csv", "_ctypes", "_curses", "_curses_panel", "_datetime", "_dbm",
    "_decimal", "_elementtree", "_frozen_importlib", "_frozen_importlib_external", "_functools", "_gdbm", "_hashlib",
    "_heapq", "_imp", "_interpreters", "_io", "_json", "_locale", "_lsprof", "_lzma", "_markupbase", "_md5", "_msi",
    "_multibytecodec", "_multiprocessing", "_opcode", "_opcode_metadata", "_operator", "_osx_support", "_overlapped",
    "_pickle", "_posixshmem", "_posixsubprocess", "_py_abc", "_pydecimal", "_pyio", "_pylong", "_pyrepl", "_queue",
    "_random", "_scproxy", "_sha1", "_sha256", "_sha3", "_sha512", "_signal", "_sitebuiltins", "_socket", "_sqlite3",
    "_sre", "_ssl", "_stat", "_statistics", "_string", "_strptime", "_struct", "_symtable", "_sysconfig", "_thread",
    "_threading_local", "_tkinter", "_tokenize", "_tracemalloc", "_typing", "_uuid", "_warnings", "_weakref",
    "_weakrefset", "_winapi", "_winreg", "_zoneinfo", "abc", "aifc", "annotationlib", "antigravity", "anydbm",
    "argparse", "array", "ast", "asynchat", "asyncio", "asyncore", "atexit", "audioop", "base64", "bdb", "binascii",
    "binhex", "bisect", "builtins", "bz2", "cPickle", "cProfile", "cStringIO", "calendar", "cgi", "cgitb", "chunk",
    "cmath", "cmd", "code", "codecs", "codeop", "collections", "colorsys", "commands", "compileall", "concurrent",
    "configparser", "contextlib", "contextvars", "cookielib", "copy", "copy_reg", "copyreg", "crypt", "csv", "ctypes",
    "curses", "dataclasses", "datetime", "dbhash", "dbm", "decimal", "difflib", "dis", "distutils", "doctest",
    "dumbdbm", "dummy_thread", "email", "encodings", "ensurepip", "enum", "errno", "exceptions", "faulthandler",
    "fcntl", "filecmp", "fileinput", "fnmatch", "fractions", "ftplib", "functools", "gc", "gdbm", "genericpath",
    "getopt", "getpass", "gettext", "glob", "graphlib", "grp", "gzip", "hashlib", "heapq", "hmac", "html",
    "htmlentitydefs", "http", "httplib", "idlelib", "imaplib", "imghdr", "imp", "importlib", "inspect", "io",
    "ipaddress", "itertools", "json", "keyword", "lib2to3", "linecache", "locale", "logging", "lzma", "mailbox",
    "mailcap", "markupbase", "marshal", "math", "mimetypes", "mmap", "modulefinder", "msilib", "msvcrt",
    "multiprocessing", "netrc", "nis", "nntplib", "nt", "ntpath", "nturl2path", "numbers", "opcode", "operator",
    "optparse", "os", "ossaudiodev", "pathlib", "pdb", "pickle", "pickletools", "pip", "pipes", "pkg_resources",
    "pkgutil", "platform", "plistlib", "popen2", "poplib", "posix", "posixfile", "posixpath", "pprint", "profile",
    "pstats", "pty", "pwd", "py_compile", "pyclbr", "pydoc", "pydoc_data", "pyexpat", "queue", "quopri", "random",
    "re", "readline", "reprlib", "resource", "rexec", "riscos", "rlcompleter", "robotparser", "runpy", "sched",
    "secrets", "select", "selectors", "setuptools", "shelve", "shlex", "shutil", "signal", "site", "smtpd", "smtplib",
    "sndhdr", "socket", "socketserver", "spwd", "sqlite3", "sre_compile", "sre_constants", "sre_parse", "ssl", "stat",
    "statistics", "string", "stringprep", "struct", "subprocess", "sunau", "symtable", "sys", "sysconfig", "syslog",
    "tabnanny", "tarfile", "telnetlib", "tempfile", "termios", "textwrap", "this", "thread", "threading", "time",
    "timeit", "tkColorChooser", "tkCommonDialog", "tkFileDialog", "tkFont", "tkMessageBox", "tkSimpleDialog",
    "tkinter", "token", "tokenize", "tomllib", "trace", "traceback", "tracemalloc", "ttk", "tty", "turtle",
    "turtledemo", "types", "typing", "unicodedata", "unittest", "urllib", "urllib2", "urlparse", "uu", "uuid", "venv",
    "warnings", "wave", "weakref", "webbrowser", "whichdb", "winreg", "winsound", "wsgiref", "xdrlib", "xml", "xmlrpc",
    "xmlrpclib", "zipapp", "zipfile", "zipimport", "zlib", "zoneinfo",
};

// Of torch and numpy, and what is installed with them.
constexpr std::string_view kTorchModules[] = {"torch", "functorch", "torchgen", "caffe2", "numpy"};

struct Row {
  Role role;
  std::string_view module;
  std::string_view names;            // separated by spaces
};

// A module that ends in ".*" stands for itself and everything below it.
constexpr Row kRows[] = {
    {Role::dict, "builtins", "dict"},
    {Role::list, "builtins", "list"},
    {Role::tuple, "builtins", "tuple"},
    {Role::set, "builtins", "set"},
    {Role::frozenset, "builtins", "frozenset"},
    {Role::bytes, "builtins", "bytes"},
    {Role::bytearray, "builtins", "bytearray"},
    {Role::complex, "builtins", "complex"},
    {Role::getattr, "builtins", "getattr"},
    {Role::type, "builtins", "type"},
    {Role::data, "builtins", "object range slice"},
    {Role::uncallable, "builtins", "int float str bool Ellipsis NotImplemented"},
    {Role::codecs_encode, "_codecs", "encode"},
    {Role::reconstructor, "copyreg", "_reconstructor"},
    {Role::newobj, "copyreg", "__newobj__"},
    {Role::newobj_ex, "copyreg", "__newobj_ex__"},
    {Role::ordered_dict, "collections", "OrderedDict"},
    {Role::counter, "collections", "Counter"},
    {Role::default_dict, "collections", "defaultdict"},
    {Role::data, "collections", "deque ChainMap UserDict UserList UserString"},
    {Role::data, "datetime", "date datetime time timedelta timezone"},
    {Role::data, "zoneinfo", "ZoneInfo ZoneInfo._unpickle"},
    {Role::data, "pathlib.*", "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath"},
    {Role::data, "argparse", "Namespace"},
    {Role::data, "types", "SimpleNamespace"},
    {Role::data, "torch._dynamo.decorators", "_DimRange"},   // attribute of jagged nested tensors
    {Role::data, "decimal", "Decimal"},
    {Role::data, "fractions", "Fraction"},
    {Role::data, "uuid", "UUID SafeUUID"},
    {Role::data, "ipaddress", "IPv4Address IPv6Address IPv4Network IPv6Network IPv4Interface IPv6Interface"},
    {Role::data, "re", "_compile"},
    {Role::data, "random", "Random"},
    {Role::data, "itertools", "count"},
    {Role::data, "array", "array _array_reconstructor"},
    {Role::data, "_io", "BytesIO StringIO"},
    {Role::numpy_scalar, "numpy.core.multiarray", "scalar"},
    {Role::numpy_scalar, "numpy._core.multiarray", "scalar"},
    {Role::numpy_reconstruct, "numpy.core.multiarray", "_reconstruct"},
    {Role::numpy_reconstruct, "numpy._core.multiarray", "_reconstruct"},
    {Role::numpy_frombuffer, "numpy.core.numeric", "_frombuffer"},
    {Role::numpy_frombuffer, "numpy._core.numeric", "_frombuffer"},
    {Role::data, "numpy", "dtype"},
    {Role::data, "numpy.random._pickle", "__generator_ctor __bit_generator_ctor __randomstate_ctor"},
    {Role::data, "numpy.random._mt19937", "MT19937"},
    {Role::data, "numpy.random._pcg64", "PCG64 PCG64DXSM"},
    {Role::data, "numpy.random._philox", "Philox"},
    {Role::data, "numpy.random._sfc64", "SFC64"},
    {Role::data, "numpy.random.bit_generator", "SeedSequence __pyx_unpickle_SeedSequence"},
    {Role::size, "torch", "Size"},
    {Role::device, "torch", "device"},
    {Role::layout, "torch.serialization", "_get_layout"},
    {Role::data, "torch.torch_version", "TorchVersion"},
    // Rebuild tensors, storages and generators from plain data; what a handler does not take stays inert.
    {Role::data, "torch._utils",
     "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter _rebuild_parameter_with_state "
     "_rebuild_qtensor _rebuild_sparse_tensor _rebuild_sparse_csr_tensor _rebuild_nested_tensor "
     "_rebuild_meta_tensor_no_storage _rebuild_wrapper_subclass _rebuild_device_tensor_from_numpy "
     "_rebuild_device_tensor_from_cpu_tensor _rebuild_xla_tensor"},
    {Role::data, "torch._tensor", "_rebuild_from_type _rebuild_from_type_v2"},
    {Role::data, "torch.nn.parameter", "Parameter Buffer UninitializedParameter UninitializedBuffer"},
    {Role::data, "torch", "Tensor Generator"},
    // Distributed: what per-rank files and `.metadata` hold besides tensors.
    {Role::data, "torch.distributed.*",
     "DTensor DTensorSpec TensorMeta Shard _StridedShard Replicate Partial _Partial _MaskPartial ShardOrderEntry "
     "DeviceMesh _MeshLayout _FlatLayout ShardedTensor ShardedTensor.ProcessGroupState ProcessGroupState "
     "ShardedTensorMetadata ShardMetadata TensorProperties MEM_FORMAT_ENCODING _MEM_FORMAT_ENCODING "
     "MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST "
     "MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT "
     "_MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT ChunkShardingSpec "
     "EnumerableShardingSpec _remote_device Metadata MetadataIndex StorageMeta TensorStorageMetadata "
     "BytesStorageMetadata ChunkStorageMetadata _StorageInfo SavePlan LoadPlan WriteItem WriteItemType "
     "WriteItemType.TENSOR WriteItemType.SHARD WriteItemType.BYTE_IO TensorWriteData BytesIOWriteData WriteResult "
     "ShardingStrategy BackwardPrefetch StateDictType MixedPrecision CPUOffload MixedPrecisionPolicy OffloadPolicy "
     "CPUOffloadPolicy StateDictConfig FullStateDictConfig LocalStateDictConfig ShardedStateDictConfig "
     "OptimStateDictConfig FullOptimStateDictConfig LocalOptimStateDictConfig ShardedOptimStateDictConfig"},
};

struct Rename {
  std::string_view old_module, old_name, module, name;
};

// Python 2 and 3 differ in more names; these are the ones that the table knows. An empty name: all of the module.
constexpr Rename kRenames[] = {
    {"__builtin__", "xrange", "builtins", "range"},
    {"__builtin__", "unicode", "builtins", "str"},
    {"__builtin__", "long", "builtins", "int"},
    {"__builtin__", "", "builtins", ""},
    {"copy_reg", "", "copyreg", ""},
    {"UserDict", "IterableUserDict", "collections", "UserDict"},
    {"UserDict", "UserDict", "collections", "UserDict"},
    {"UserList", "UserList", "collections", "UserList"},
    {"UserString", "UserString", "collections", "UserString"},
};

bool names_contain(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t space = std::min(names.find(' '), names.size());
    if (names.substr(0, space) == name) return true;
    names.remove_prefix(std::min(space + 1, names.size()));
  }
  return false;
}

bool module_matches(std::string_view pattern, std::string_view module) {
  if (!pattern.ends_with(".*")) return pattern == module;
  pattern.remove_suffix(2);
  return module.starts_with(pattern) && (module.size() == pattern.size() || module[pattern.size()] == '.');
}

// torch.float32, torch.channels_last, torch.per_tensor_affine; also as attributes of torch._utils, which is how
// protocol 4 names memory formats.
std::optional<Kind> torch_constant(std::string_view module, std::string_view name) {
  if (module == "torch._utils" && name.starts_with("torch.")) {
    name.remove_prefix(6);
  } else if (module != "torch") {
    return std::nullopt;
  }
  if (dtype_from_name(name)) return Kind::dtype;
  // Integers of 1 to 7 bits exist as names only.
  if (names_contain("int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7", name)) {
    return Kind::dtype;
  }
  if (names_contain("contiguous_format channels_last channels_last_3d preserve_format", name)) {
    return Kind::memory_format;
  }
  if (names_contain("per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric "
                    "per_channel_affine_float_qparams", name)) {
    return Kind::qscheme;
  }
  return std::nullopt;
}

}  // namespace

PythonName classify_python_name(std::string_view module, std::string_view name) {
  if (const auto kind = torch_constant(module, name)) return {Role::constant, *kind};
  for (const Row& row : kRows) {
    if (module_matches(row.module, module) && names_contain(row.names, name)) return {row.role, Kind::none};
  }
  const std::string_view top = module.substr(0, module.find('.'));
  if (std::binary_search(std::begin(kPythonModules), std::end(kPythonModules), top)) return {Role::unsafe, Kind::none};
  if (std::find(std::begin(kTorchModules), std::end(kTorchModules), top) != std::end(kTorchModules)) {
    return {Role::uncallable, Kind::none};
  }
  return {Role::foreign, Kind::none};
}

QualifiedName python3_name(std::string_view module, std::string_view name) {
  for (const Rename& r : kRenames) {
    if (r.old_module != module) continue;
    if (r.old_name == name) return {r.module, r.name};
    if (r.old_name.empty()) return {r.module, name};
  }
  return {module, name};
}

QualifiedName python2_name(std::string_view module, std::string_view name) {
  for (const Rename& r : kRenames) {
    if (r.module != module) continue;
    if (r.name == name) return {r.old_module, r.old_name};
    if (r.name.empty()) return {r.old_module, name};
  }
  return {module, name};
}

}  // namespace fsdpctl
