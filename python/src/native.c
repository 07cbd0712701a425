/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.c - what would take Python too long, or has no Python: DLPack capsules, and the memory of
 * many buffers at once.
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
#include <stdlib.h>
#include <string.h>

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

/* ---- many keys and buffers ---- */

enum { KEY_BYTES = 32 };

static const char exports_name[] = "kvterrace.exports";

/* Buffers that are held exported, and their places as kvtpy_get_many takes them. */
typedef struct exports {
    Py_ssize_t count;
    void **addresses;
    uint64_t *sizes;
    Py_buffer views[];
} exports;

static void exports_free(exports *held)
{
    for (Py_ssize_t i = 0; i < held->count; i++)
        PyBuffer_Release(&held->views[i]);
    free(held->addresses);
    free(held->sizes);
    free(held);
}

static void exports_end(PyObject *owner)
{
    exports_free(PyCapsule_GetPointer(owner, exports_name));
}

static exports *exports_new(Py_ssize_t room)
{
    size_t items = (size_t)room + 1;
    exports *held = calloc(1, sizeof *held + items * sizeof held->views[0]);
    if (held == NULL) return NULL;
    held->addresses = calloc(items, sizeof *held->addresses);
    held->sizes = calloc(items, sizeof *held->sizes);
    if (held->addresses != NULL && held->sizes != NULL) return held;
    exports_free(held);
    return NULL;
}

/* Exports one more buffer: writable, without gaps, of single bytes. False for any other object. */
static int export_one(exports *held, PyObject *source)
{
    Py_buffer *view = &held->views[held->count];
    if (PyObject_GetBuffer(source, view, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
        PyErr_Clear();
        return 0;
    }
    held->addresses[held->count] = view->buf;
    held->sizes[held->count] = (uint64_t)view->len;
    held->count++;
    return view->itemsize == 1;
}

/* (owner, address of the addresses, address of the sizes), or None when one of the objects is no
 * plain buffer to be written: then the caller looks at each, and says what is wrong. */
static PyObject *export_many(PyObject *self, PyObject *sources)
{
    (void)self;
    Py_ssize_t count = PySequence_Size(sources);
    if (count < 0) return NULL;
    exports *held = exports_new(count);
    if (held == NULL) return PyErr_NoMemory();
    int plain = 1;
    for (Py_ssize_t i = 0; i < count && plain; i++) {
        PyObject *source = PySequence_GetItem(sources, i);
        if (source == NULL) {
            exports_free(held);
            return NULL;
        }
        plain = export_one(held, source);
        Py_DECREF(source);
    }
    PyObject *owner = plain ? PyCapsule_New(held, exports_name, exports_end) : NULL;
    if (owner == NULL) {
        exports_free(held);
        if (plain) return NULL;
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(NKK)", owner, (unsigned long long)(uintptr_t)held->addresses,
                         (unsigned long long)(uintptr_t)held->sizes);
}

/* The keys one after the other, as bytes; None when one is no key. */
static PyObject *join_keys(PyObject *self, PyObject *keys)
{
    (void)self;
    Py_ssize_t count = PySequence_Size(keys);
    if (count < 0) return NULL;
    PyObject *joined = PyBytes_FromStringAndSize(NULL, count * KEY_BYTES);
    if (joined == NULL) return NULL;
    char *place = PyBytes_AsString(joined);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *key = PySequence_GetItem(keys, i);
        int sound = key != NULL && PyBytes_Check(key) && PyBytes_Size(key) == KEY_BYTES;
        if (sound) memcpy(place + i * KEY_BYTES, PyBytes_AsString(key), KEY_BYTES);
        Py_XDECREF(key);
        if (sound) continue;
        Py_DECREF(joined);
        if (key == NULL) return NULL;
        Py_RETURN_NONE;
    }
    return joined;
}

static PyMethodDef methods[] = {
    {"export", export_many, METH_O,
     "export(sequence) -> (owner, address of addresses, address of sizes), or None"},
    {"join", join_keys, METH_O, "join(sequence) -> the keys as bytes, or None"},
    {"read", read_capsule, METH_O,
     "read(capsule) -> (address, bytes, device type, device id, type code, bits, read only, "
     "owner)"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {.m_base = PyModuleDef_HEAD_INIT,
                                    .m_name = "kvterrace._native",
                                    .m_doc = "DLPack capsules, and the memory of many buffers.",
                                    .m_methods = methods};

PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModule_Create(&module);
}
