// The buffer of one argument: what a numpy array says of itself, or any object by the buffer protocol.
//
// Is: address, size and element type of contiguous memory, looked at without a copy.
// Is not: an owner: the caller holds the argument for as long as the view is used.
//
// numpy makes a format string for every view that asks for one: 70 ns and more. The front of an array is the same in all
// versions since 1.7 (PyArrayObject_fields), and is read where it is. Nothing is trusted: before the first use both ways
// look at arrays of every element type, and where they differ all go by the protocol.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#include "ccl_lab/schema.hpp"

namespace ccl_lab {

class View {
 public:
  View() = default;
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() {
    if (held_) PyBuffer_Release(&buffer_);
  }

  // False where it has none that is contiguous, and writable if asked for; no error is left behind.
  bool open(PyObject* object, bool writable) { return read_array(object, writable) || ask(object, writable); }
  // By the protocol alone.
  bool ask(PyObject* object, bool writable);

  std::byte* data() const { return data_; }
  std::uint64_t nbytes() const { return nbytes_; }
  DType dtype() const { return dtype_; }

 private:
  friend bool fronts_are_known(PyTypeObject* type);

  // False where the object is not plainly a numpy array of ours; it may have a buffer nevertheless.
  bool read_array(PyObject* object, bool writable);
  bool read_front(PyObject* array, bool writable);
  bool find_dtype(const char* format, Py_ssize_t itemsize);

  Py_buffer buffer_{};
  bool held_ = false;
  DType dtype_ = DType::uint8;
  std::byte* data_ = nullptr;
  std::uint64_t nbytes_ = 0;
};

}  // namespace ccl_lab
