// Reading the front of a numpy array, and the proof that it may be read; see buffers.hpp.
#include "buffers.hpp"

#include <atomic>

namespace nb = nanobind;

namespace ccl_lab {

namespace {

// The front of numpy's PyArray_Descr and PyArrayObject_fields.
struct DescrFront {
  PyObject head;
  PyTypeObject* scalar;
  char kind;
  char type;
  char byteorder;  // '=': this machine's; '|': of one byte
  char flags;
  int type_num;
};
struct ArrayFront {
  PyObject head;
  std::byte* data;
  int nd;
  Py_ssize_t* dimensions;
  Py_ssize_t* strides;
  PyObject* base;
  DescrFront* descr;
  int flags;
};
constexpr unsigned kPlain = 0x1 | 0x100;  // contiguous in the order of C, every element at a multiple of its size
constexpr unsigned kWriteable = 0x400;
constexpr unsigned kWarnOnWrite = 0x80000000u;

bool dtype_of_number(int number, DType& dtype) {
  switch (number) {
    case 1: dtype = DType::int8; return true;
    case 2: dtype = DType::uint8; return true;
    case 3: dtype = DType::int16; return true;
    case 5: dtype = DType::int32; return true;
    case 7: dtype = sizeof(long) == 8 ? DType::int64 : DType::int32; return true;
    case 9: dtype = DType::int64; return true;
    case 11: dtype = DType::float32; return true;
    case 12: dtype = DType::float64; return true;
    case 23: dtype = DType::float16; return true;
    default: return false;
  }
}

nb::object probe_of(const nb::module_& numpy, const char* dtype) { return numpy.attr("zeros")(nb::make_tuple(3, 5), dtype); }

}  // namespace

// Both ways see the same in arrays of every type, and neither writes into one that is read-only.
bool fronts_are_known(PyTypeObject* type) {
  const nb::module_ numpy = nb::module_::import_("numpy");
  for (const char* const dtype : {"e", "f", "d", "b", "h", "i", "l", "q", "B"}) {
    const nb::object array = probe_of(numpy, dtype);
    if (Py_TYPE(array.ptr()) != type) return false;
    View read;
    View asked;
    if (!read.read_front(array.ptr(), true) || !asked.ask(array.ptr(), true)) return false;
    if (read.data_ != asked.data_ || read.nbytes_ != asked.nbytes_ || read.dtype_ != asked.dtype_) return false;
    array.attr("setflags")(nb::arg("write") = false);
    if (View().read_front(array.ptr(), true) || !View().read_front(array.ptr(), false)) return false;
    if (View().read_front(nb::object(array.attr("T")).ptr(), false)) return false;
  }
  return !View().read_front(probe_of(numpy, ">f4").ptr(), false) && !View().read_front(probe_of(numpy, "u4").ptr(), false) &&
         !View().read_front(probe_of(numpy, "?").ptr(), false);
}

namespace {

// numpy's array type if its arrays can be read; null: they go by the protocol.
PyTypeObject* readable_arrays() {
  try {
    auto* const type = reinterpret_cast<PyTypeObject*>(nb::module_::import_("numpy").attr("ndarray").ptr());
    return fronts_are_known(type) ? type : nullptr;
  } catch (const nb::python_error&) {
    return nullptr;
  }
}

}  // namespace

// A subclass may show another buffer than its own. No static with a guard: importing may give the GIL away to a thread that
// would wait for the guard with it; two that look find the same.
bool View::read_array(PyObject* object, bool writable) {
  static std::atomic<PyTypeObject*> arrays{nullptr};
  static std::atomic<bool> looked{false};
  if (!looked.load(std::memory_order_acquire)) [[unlikely]] {
    arrays.store(readable_arrays(), std::memory_order_relaxed);
    looked.store(true, std::memory_order_release);
  }
  return Py_TYPE(object) == arrays.load(std::memory_order_relaxed) && read_front(object, writable);
}

bool View::read_front(PyObject* array, bool writable) {
  const auto& front = *reinterpret_cast<const ArrayFront*>(array);
  const auto flags = static_cast<unsigned>(front.flags);
  if ((flags & kPlain) != kPlain || (writable && (flags & (kWriteable | kWarnOnWrite)) != kWriteable)) return false;
  if (front.descr->byteorder != '=' && front.descr->byteorder != '|') return false;
  if (!dtype_of_number(front.descr->type_num, dtype_)) return false;
  std::uint64_t count = 1;
  for (int i = 0; i < front.nd; ++i) count *= static_cast<std::uint64_t>(front.dimensions[i]);
  data_ = front.data;
  nbytes_ = count * itemsize(dtype_);
  return true;
}

bool View::ask(PyObject* object, bool writable) {
  const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object, &buffer_, flags) != 0) {
    PyErr_Clear();
    return false;
  }
  held_ = true;
  data_ = static_cast<std::byte*>(buffer_.buf);
  nbytes_ = static_cast<std::uint64_t>(buffer_.len);
  return find_dtype(buffer_.format, buffer_.itemsize);
}

bool View::find_dtype(const char* format, Py_ssize_t itemsize) {
  if (format == nullptr || format[0] == '\0' || format[1] != '\0') return false;
  const bool wide = itemsize == 8;
  switch (format[0]) {
    case 'e': dtype_ = DType::float16; return true;
    case 'f': dtype_ = DType::float32; return true;
    case 'd': dtype_ = DType::float64; return true;
    case 'b': dtype_ = DType::int8; return true;
    case 'h': dtype_ = DType::int16; return true;
    case 'i': dtype_ = DType::int32; return true;
    case 'l': dtype_ = wide ? DType::int64 : DType::int32; return true;
    case 'q': dtype_ = DType::int64; return true;
    case 'B': dtype_ = DType::uint8; return true;
    default: return false;
  }
}

}  // namespace ccl_lab
