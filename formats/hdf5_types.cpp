#include "formats/hdf5_types.h"

#include <hdf5.h>

#include <algorithm>
#include <array>

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

// Sign, exponent and mantissa, from the most significant bit down.
struct FloatFields {
  DType dtype;
  size_t size, exponent_bits, mantissa_bits, bias;
};
constexpr std::array<FloatFields, 5> kFloats = {{
    {DType::float64, 8, 11, 52, 1023},
    {DType::float32, 4, 8, 23, 127},
    {DType::float16, 2, 5, 10, 15},
    {DType::bfloat16, 2, 8, 7, 127},
    {DType::float8_e5m2, 1, 5, 2, 15},
}};

Hdf5Id checked(hid_t id) {
  if (id >= 0) return {id, H5Tclose};
  throw Error(Exit::failed, "HDF5 library refuses a type");
}

Hdf5Id copy_of(hid_t type) { return checked(H5Tcopy(type)); }

// A float that the library has no name for, made from a larger one.
Hdf5Id small_float(DType dtype) {
  const FloatFields& f = *std::find_if(kFloats.begin(), kFloats.end(), [&](const FloatFields& row) { return row.dtype == dtype; });
  Hdf5Id type = copy_of(H5T_IEEE_F32LE);
  // The fields must fit at every step: first into the old size, then the size shrinks.
  const bool done = H5Tset_fields(type.get(), 8 * f.size - 1, f.mantissa_bits, f.exponent_bits, 0, f.mantissa_bits) >= 0 &&
                    H5Tset_size(type.get(), f.size) >= 0 && H5Tset_precision(type.get(), 8 * f.size) >= 0 &&
                    H5Tset_ebias(type.get(), f.bias) >= 0;
  if (!done) throw Error(Exit::failed, "HDF5 library refuses a type");
  return type;
}

Hdf5Id boolean() {   // as h5py writes numpy.bool_
  Hdf5Id type = checked(H5Tenum_create(H5T_STD_I8LE));
  const int8_t no = 0, yes = 1;
  H5Tenum_insert(type.get(), "FALSE", &no);
  H5Tenum_insert(type.get(), "TRUE", &yes);
  return type;
}

// As h5py writes numpy's complex numbers. It has no complex32 and fails on {r, i} of halves, but reads other names.
Hdf5Id complex_of(DType part) {
  const Hdf5Id real = hdf5_type(part);
  const size_t size = item_size(part);
  const bool numpy_has_it = part != DType::float16;
  Hdf5Id type = checked(H5Tcreate(H5T_COMPOUND, 2 * size));
  H5Tinsert(type.get(), numpy_has_it ? "r" : "real", 0, real.get());
  H5Tinsert(type.get(), numpy_has_it ? "i" : "imag", size, real.get());
  return type;
}

hid_t unsigned_of(uint32_t size) {
  switch (size) {
    case 1: return H5T_STD_U8LE;
    case 2: return H5T_STD_U16LE;
    case 4: return H5T_STD_U32LE;
    default: return H5T_STD_U64LE;
  }
}

Hdf5Element number(DType dtype, bool swap) {
  Hdf5Element element;
  element.kind = Hdf5Element::Kind::number;
  element.dtype = dtype;
  element.swap = swap && item_size(dtype) > 1;
  return element;
}

Hdf5Element unsupported(std::string text) {
  Hdf5Element element;
  element.text = std::move(text);
  return element;
}

bool is_big_endian(hid_t type) { return H5Tget_order(type) == H5T_ORDER_BE; }

Hdf5Element integer_element(hid_t type) {
  const size_t size = H5Tget_size(type);
  if (H5Tget_offset(type) != 0 || H5Tget_precision(type) != 8 * size) return unsupported("integers with padding bits");
  const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
  const bool swap = is_big_endian(type);
  switch (size) {
    case 1: return number(is_signed ? DType::int8 : DType::uint8, false);
    case 2: return number(is_signed ? DType::int16 : DType::uint16, swap);
    case 4: return number(is_signed ? DType::int32 : DType::uint32, swap);
    case 8: return number(is_signed ? DType::int64 : DType::uint64, swap);
    default: return unsupported(std::to_string(8 * size) + "-bit integers");
  }
}

Hdf5Element float_element(hid_t type) {
  size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0) return unsupported("unknown floats");
  const size_t size = H5Tget_size(type), bias = H5Tget_ebias(type);
  for (const FloatFields& f : kFloats) {
    if (size == f.size && sign == 8 * size - 1 && exponent == f.mantissa_bits && exponent_bits == f.exponent_bits && mantissa == 0 &&
        mantissa_bits == f.mantissa_bits && bias == f.bias && H5Tget_norm(type) == H5T_NORM_IMPLIED) {
      if (H5Tget_order(type) != H5T_ORDER_LE && !is_big_endian(type)) return unsupported("floats in VAX order");
      return number(f.dtype, is_big_endian(type));
    }
  }
  return unsupported(std::to_string(8 * size) + "-bit floats that PyTorch does not have");
}

Hdf5Element enum_element(hid_t type) {
  const Hdf5Id base = checked(H5Tget_super(type));
  Hdf5Element element = integer_element(base.get());
  int8_t no = 1, yes = 0;
  const bool is_bool = element.kind == Hdf5Element::Kind::number && item_size(element.dtype) == 1 && H5Tget_nmembers(type) == 2 &&
                       H5Tenum_valueof(type, "FALSE", &no) >= 0 && H5Tenum_valueof(type, "TRUE", &yes) >= 0 && no == 0 && yes == 1;
  if (is_bool) element.dtype = DType::boolean;
  return element;
}

Hdf5Element complex_element(hid_t type) {
  if (H5Tget_nmembers(type) != 2) return unsupported("compound values");
  const Hdf5Id first = checked(H5Tget_member_type(type, 0)), second = checked(H5Tget_member_type(type, 1));
  if (H5Tequal(first.get(), second.get()) <= 0 || H5Tget_class(first.get()) != H5T_FLOAT) return unsupported("compound values");
  const Hdf5Element part = float_element(first.get());
  const size_t size = item_size(part.dtype);
  if (part.kind != Hdf5Element::Kind::number || H5Tget_member_offset(type, 0) != 0 || H5Tget_member_offset(type, 1) != size ||
      H5Tget_size(type) != 2 * size) {
    return unsupported("compound values");
  }
  switch (part.dtype) {
    case DType::float64: return number(DType::complex128, part.swap);
    case DType::float32: return number(DType::complex64, part.swap);
    case DType::float16: return number(DType::complex32, part.swap);
    default: return unsupported("complex numbers that PyTorch does not have");
  }
}

}  // namespace

std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  return mutex;
}

Hdf5Id hdf5_type(DType dtype) {
  switch (dtype) {
    case DType::float64: return copy_of(H5T_IEEE_F64LE);
    case DType::float32: return copy_of(H5T_IEEE_F32LE);
    case DType::float16: case DType::bfloat16: case DType::float8_e5m2: return small_float(dtype);
    case DType::complex128: return complex_of(DType::float64);
    case DType::complex64: return complex_of(DType::float32);
    case DType::complex32: return complex_of(DType::float16);
    case DType::int64: return copy_of(H5T_STD_I64LE);
    case DType::int32: return copy_of(H5T_STD_I32LE);
    case DType::int16: return copy_of(H5T_STD_I16LE);
    case DType::int8: return copy_of(H5T_STD_I8LE);
    case DType::boolean: return boolean();
    default: return copy_of(unsigned_of(item_size(dtype)));
  }
}

bool hdf5_needs_attribute(DType dtype) {
  switch (dtype) {
    case DType::uint8: case DType::uint16: case DType::uint32: case DType::uint64: return false;
    default: break;
  }
  const DTypeKind kind = dtype_kind(dtype);
  if (kind == DTypeKind::bits || kind == DTypeKind::quantized) return true;
  return kind == DTypeKind::floating && item_size(dtype) == 1 && dtype != DType::float8_e5m2;
}

Hdf5Element hdf5_element(int64_t type) {
  switch (H5Tget_class(type)) {
    case H5T_INTEGER: return integer_element(type);
    case H5T_FLOAT: return float_element(type);
    case H5T_ENUM: return enum_element(type);
    case H5T_COMPOUND: return complex_element(type);
    case H5T_STRING: {
      Hdf5Element element;
      element.kind = Hdf5Element::Kind::string;
      element.variable = H5Tis_variable_str(type) > 0;
      return element;
    }
    case H5T_BITFIELD: return unsupported("bit fields");
    case H5T_OPAQUE: return unsupported("opaque bytes");
    case H5T_REFERENCE: return unsupported("references");
    case H5T_VLEN: return unsupported("sequences of variable length");
    case H5T_ARRAY: return unsupported("arrays as elements");
    default: return unsupported("values of an unknown class");
  }
}

bool apply_torch_dtype(std::string_view name, Hdf5Element& element) {
  const std::optional<DType> dtype = dtype_from_name(name);
  if (!dtype || element.kind != Hdf5Element::Kind::number || item_size(*dtype) != item_size(element.dtype)) return false;
  if (dtype_kind(element.dtype) != DTypeKind::integer && *dtype != element.dtype) return false;
  element.dtype = *dtype;
  return true;
}

}  // namespace fsdpctl
