/* What Cython has no name for: an instance without its `__init__`, and the slot that `await` asks first. */
#ifndef AIODIST_HANDLE_H
#define AIODIST_HANDLE_H

#include <Python.h>

/* A new instance of a class; its `__init__` is not called. */
static inline PyObject *bare_new(PyObject *kind) {
    static PyObject *no_arguments;
    PyTypeObject *type = (PyTypeObject *)kind;
    if (!no_arguments && !(no_arguments = PyTuple_New(0))) return NULL;
    return type->tp_new(type, no_arguments, NULL);
}

typedef PySendResult (*sender)(PyObject *, PyObject *, PyObject **);

/* Have `await` ask a function first: a result that is there costs no exception then. */
static inline void set_sender(PyObject *kind, sender send) {
    static PyAsyncMethods methods;
    methods.am_send = send;
    ((PyTypeObject *)kind)->tp_as_async = &methods;
    PyType_Modified((PyTypeObject *)kind);
}

#endif
