// The opcodes of pickle protocols 0 to 5, by the names of Python's pickletools.
#pragma once

#include <cstdint>

namespace fsdpctl::pickle {

enum Op : uint8_t {
  kMark = '(', kStop = '.', kPop = '0', kPopMark = '1', kDup = '2',
  kFloat = 'F', kBinFloat = 'G', kInt = 'I', kBinInt = 'J', kBinInt1 = 'K', kLong = 'L', kBinInt2 = 'M', kNone = 'N',
  kPersId = 'P', kBinPersId = 'Q', kReduce = 'R', kString = 'S', kBinString = 'T', kShortBinString = 'U',
  kUnicode = 'V', kBinUnicode = 'X', kAppend = 'a', kBuild = 'b', kGlobal = 'c', kDict = 'd', kEmptyDict = '}',
  kAppends = 'e', kGet = 'g', kBinGet = 'h', kInst = 'i', kLongBinGet = 'j', kList = 'l', kEmptyList = ']',
  kObj = 'o', kPut = 'p', kBinPut = 'q', kLongBinPut = 'r', kSetItem = 's', kTuple = 't', kEmptyTuple = ')',
  kSetItems = 'u', kBinBytes = 'B', kShortBinBytes = 'C',
  // protocol 2
  kProto = 0x80, kNewObj, kExt1, kExt2, kExt4, kTuple1, kTuple2, kTuple3, kNewTrue, kNewFalse, kLong1, kLong4,
  // protocol 4
  kShortBinUnicode = 0x8C, kBinUnicode8, kBinBytes8, kEmptySet, kAddItems, kFrozenSet, kNewObjEx, kStackGlobal,
  kMemoize, kFrame,
  // protocol 5
  kByteArray8 = 0x96, kNextBuffer, kReadonlyBuffer,
};

}  // namespace fsdpctl::pickle
