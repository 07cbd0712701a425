/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlpack.c - reads a DLPack capsule: where a tensor's bytes lie and what they are.
 *
 * numpy has no bfloat16 and torch has no buffer protocol, so that tensors come in by DLPack, which
 * has both. The two forms of the capsule are taken: "dltensor", and "dltensor_versioned" of DLPack
 * 1. The structs are those of dlpack.h, whose binary interface is fixed for a major version.
 *
 * The stable interface of Python 3.11 is used alone. Thread rule: the interpreter's lock.
 */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t dimensions;
    uint8_t type_code;
    uint8_t type_bits;
    uint16_t type_lanes;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: without gaps */
    uint64_t byte_offset;
} tensor;

typedef struct managed {
    tensor held;
    void *context;
    void (*deleter)(struct managed *self);
} managed;

typedef struct managed_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct managed_versioned *self);
    uint64_t flags;
    tensor held;
} managed_versioned;

enum { FLAG_READ_ONLY = 1, DIMENSIONS_MAX = 64 };

static const char plain_name[] = "dltensor", versioned_name[] = "dltensor_versioned";
static const char owner_name[] = "kvterrace.tensor", owner_versioned_name[] = "kvterrace.tensor1";

/* The owner of a tensor is gone: so is the tensor. */
static void owner_end(PyObject *owner)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (PyCapsule_IsValid(owner, owner_versioned_name)) {
        managed_versioned *of = PyCapsule_GetPointer(owner, owner_versioned_name);
        if (of->deleter != NULL) of->deleter(of);
    } else if (PyCapsule_IsValid(owner, owner_name)) {
        managed *of = PyCapsule_GetPointer(owner, owner_name);
        if (of->deleter != NULL) of->deleter(of);
    }
    PyErr_Restore(type, value, trace);
}

/* Elements of a tensor whose rows follow each other without gaps; -1 with an error set. */
static int64_t count_elements(const tensor *of)
{
    if (of->dimensions < 0 || of->dimensions > DIMENSIONS_MAX ||
        (of->dimensions > 0 && of->shape == NULL)) {
        PyErr_SetString(PyExc_BufferError, "a tensor without a shape");
        return -1;
    }
    int64_t elements = 1;
    for (int32_t i = 0; i < of->dimensions; i++) {
        if (of->shape[i] < 0 || __builtin_mul_overflow(elements, of->shape[i], &elements)) {
            PyErr_SetString(PyExc_BufferError, "a tensor whose shape overflows");
            return -1;
        }
    }
    int64_t expected = 1;
    for (int32_t i = of->dimensions; elements > 0 && of->strides != NULL && i-- > 0;) {
        if (of->shape[i] != 1 && of->strides[i] != expected) {
            PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous");
            return -1;
        }
        expected *= of->shape[i];
    }
    return elements;
}

/* (address, bytes, device type, device id, type code, type bits, read only, owner). The capsule is
 * used up when it is taken; `owner` keeps the tensor. */
static PyObject *take(const tensor *of, int read_only, PyObject *owner)
{
    int64_t elements = count_elements(of);
    int64_t bits = (int64_t)of->type_bits * (of->type_lanes == 0 ? 1 : of->type_lanes), bytes = 0;
    if (elements < 0) return NULL;
    if (bits == 0 || bits % 8 != 0 || __builtin_mul_overflow(elements, bits / 8, &bytes)) {
        PyErr_SetString(PyExc_BufferError, "elements of the tensor are not whole bytes");
        return NULL;
    }
    return Py_BuildValue("(KLiiiiiO)",
                         (unsigned long long)((uintptr_t)of->data + (uintptr_t)of->byte_offset),
                         (long long)bytes, (int)of->device_type, (int)of->device_id,
                         (int)of->type_code, (int)bits, read_only, owner);
}

static PyObject *read_capsule(PyObject *self, PyObject *capsule)
{
    (void)self;
    PyObject *owner = NULL, *result = NULL;
    if (PyCapsule_IsValid(capsule, versioned_name)) {
        managed_versioned *of = PyCapsule_GetPointer(capsule, versioned_name);
        if (of->major != 1) {
            return PyErr_Format(PyExc_BufferError, "DLPack %u is not known", (unsigned)of->major);
        }
        owner = PyCapsule_New(of, owner_versioned_name, owner_end);
        if (owner == NULL || PyCapsule_SetName(capsule, "used_dltensor_versioned") != 0) goto out;
        result = take(&of->held, (of->flags & FLAG_READ_ONLY) != 0, owner);
    } else if (PyCapsule_IsValid(capsule, plain_name)) {
        managed *of = PyCapsule_GetPointer(capsule, plain_name);
        owner = PyCapsule_New(of, owner_name, owner_end);
        if (owner == NULL || PyCapsule_SetName(capsule, "used_dltensor") != 0) goto out;
        result = take(&of->held, 0, owner);
    } else {
        PyErr_SetString(PyExc_BufferError, "no DLPack capsule, or one that is used up");
    }
out:
    Py_XDECREF(owner);
    return result;
}

static PyMethodDef methods[] = {{"read", read_capsule, METH_O,
                                 "read(capsule) -> (address, bytes, device type, device id, type "
                                 "code, bits, read only, owner)"},
                                {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {.m_base = PyModuleDef_HEAD_INIT,
                                    .m_name = "kvterrace._dlpack",
                                    .m_doc = "Reads DLPack capsules.",
                                    .m_methods = methods};

PyMODINIT_FUNC PyInit__dlpack(void);

PyMODINIT_FUNC PyInit__dlpack(void)
{
    return PyModule_Create(&module);
}
