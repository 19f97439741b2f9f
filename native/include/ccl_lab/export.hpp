// What the shared library shows of itself.
//
// Is: CCL_LAB_API, before every class a program may use.
// Is not: needed by the static library, which has the same symbols.
#pragma once

#if defined(__GNUC__)
#define CCL_LAB_API __attribute__((visibility("default")))
#else
#define CCL_LAB_API
#endif
