/* The line of the program that has called, where a call came from compiled code. */
#ifndef AIODIST_FRAMES_H
#define AIODIST_FRAMES_H

#include <Python.h>

/* The frame so many calls above the running one, as a new reference; NULL where there is none. */
static PyObject *frame_above(int depth) {
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    for (; frame && depth > 0; depth--) {
        PyFrameObject *outer = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = outer;
    }
    return (PyObject *)frame;
}

static PyObject *code_of(PyObject *frame) { return (PyObject *)PyFrame_GetCode((PyFrameObject *)frame); }

static int instruction_of(PyObject *frame) { return PyFrame_GetLasti((PyFrameObject *)frame); }

#endif
