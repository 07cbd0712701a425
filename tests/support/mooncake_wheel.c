/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mooncake_wheel.c - the C interface of Mooncake Store over the module of PyPI's wheel, which has
 * the engine and exports no C symbols: a libmooncake_store.so for tests and trials. The folder in
 * which the wheel was unpacked is KVT_MOONCAKE_WHEEL in the environment.
 *
 * It runs Python inside of the process. The module's calls let other threads run meanwhile.
 *
 * Thread rule: any thread; Python's lock is taken in each call.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fake_mooncake.h"

#include <dlfcn.h>
#include <pthread.h>

static pthread_once_t wheel_once = PTHREAD_ONCE_INIT;
static PyObject *wheel_class;

#define WHEEL_TEXT(name)  #name
#define WHEEL_VALUE(name) WHEEL_TEXT(name)

static void wheel_start(void)
{
    const char *folder = getenv("KVT_MOONCAKE_WHEEL");
    /* The module is linked to no libpython: it finds the symbols of the process. */
    if (dlopen(
            "libpython" WHEEL_VALUE(PY_MAJOR_VERSION) "." WHEEL_VALUE(PY_MINOR_VERSION) ".so.1.0",
            RTLD_NOW | RTLD_GLOBAL) == NULL ||
        folder == NULL)
        return;
    Py_InitializeEx(0);
    PyObject *path = PySys_GetObject("path"), *text = PyUnicode_FromString(folder);
    if (path != NULL && text != NULL) (void)PyList_Insert(path, 0, text);
    PyObject *module = PyImport_ImportModule("mooncake.store");
    if (module != NULL) wheel_class = PyObject_GetAttrString(module, "MooncakeDistributedStore");
    if (wheel_class == NULL) PyErr_Print();
    Py_XDECREF(text);
    (void)PyEval_SaveThread();
}

/* The number that a call gives, which is given up; -1 where it raised. */
static int64_t wheel_number(PyObject *result)
{
    const int64_t number = result != NULL ? PyLong_AsLongLong(result) : -1;
    if (PyErr_Occurred() != NULL) PyErr_Print();
    Py_XDECREF(result);
    return number;
}

void *mooncake_store_create(void)
{
    pthread_once(&wheel_once, wheel_start);
    if (wheel_class == NULL) return NULL;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *store = PyObject_CallNoArgs(wheel_class);
    if (store == NULL) PyErr_Print();
    PyGILState_Release(state);
    return store;
}

void mooncake_store_destroy(void *store)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    (void)wheel_number(PyObject_CallMethod(store, "close", NULL));
    Py_DECREF((PyObject *)store);
    PyGILState_Release(state);
}

int mooncake_store_setup(void *store, const char *own, const char *metadata, uint64_t segment_bytes,
                         uint64_t buffer_bytes, const char *protocol, const char *devices,
                         const char *master)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    const int64_t status = wheel_number(PyObject_CallMethod(
        store, "setup", "ssKKsss", own, metadata, (unsigned long long)segment_bytes,
        (unsigned long long)buffer_bytes, protocol, devices, master));
    PyGILState_Release(state);
    return (int)status;
}

int mooncake_store_register_buffer(void *store, void *buffer, size_t bytes)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    const int64_t status = wheel_number(PyObject_CallMethod(
        store, "register_buffer", "Kn", (unsigned long long)(uintptr_t)buffer, (Py_ssize_t)bytes));
    PyGILState_Release(state);
    return (int)status;
}

int mooncake_store_unregister_buffer(void *store, void *buffer)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    const int64_t status = wheel_number(PyObject_CallMethod(store, "unregister_buffer", "K",
                                                            (unsigned long long)(uintptr_t)buffer));
    PyGILState_Release(state);
    return (int)status;
}

/* Calls a method with lists of keys and, where there are any, buffers and their bytes. results: 64
 * bits each. Nonzero: the call gave no list. */
static int wheel_batch(void *store, const char *method, const char **keys, void **buffers,
                       const size_t *bytes, size_t count, int64_t *results)
{
    int status = -1;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *names = PyList_New((Py_ssize_t)count), *places = PyList_New((Py_ssize_t)count);
    PyObject *sizes = PyList_New((Py_ssize_t)count), *given = NULL;
    for (size_t i = 0; i < count; i++) {
        PyList_SET_ITEM(names, (Py_ssize_t)i, PyUnicode_FromString(keys[i]));
        PyList_SET_ITEM(places, (Py_ssize_t)i,
                        PyLong_FromVoidPtr(buffers != NULL ? buffers[i] : NULL));
        PyList_SET_ITEM(sizes, (Py_ssize_t)i, PyLong_FromSize_t(bytes != NULL ? bytes[i] : 0));
    }
    given = buffers != NULL ? PyObject_CallMethod(store, method, "OOO", names, places, sizes)
                            : PyObject_CallMethod(store, method, "O", names);
    if (given != NULL && PyList_Check(given) && (size_t)PyList_GET_SIZE(given) == count) {
        for (size_t i = 0; i < count; i++)
            results[i] = PyLong_AsLongLong(PyList_GET_ITEM(given, (Py_ssize_t)i));
        status = 0;
    }
    if (PyErr_Occurred() != NULL) PyErr_Print();
    Py_XDECREF(given);
    Py_DECREF(names);
    Py_DECREF(places);
    Py_DECREF(sizes);
    PyGILState_Release(state);
    return status;
}

#define WHEEL_MOST 256u

/* The same with results of 32 bits. */
static int wheel_batch_short(void *store, const char *method, const char **keys, void **buffers,
                             const size_t *bytes, size_t count, int *results)
{
    int64_t wide[WHEEL_MOST];
    if (count > WHEEL_MOST) return -1;
    const int status = wheel_batch(store, method, keys, buffers, bytes, count, wide);
    for (size_t i = 0; status == 0 && i < count; i++)
        results[i] = (int)wide[i];
    return status;
}

int mooncake_store_batch_put_from(void *store, const char **keys, void **buffers,
                                  const size_t *bytes, size_t count, const void *replication,
                                  int *results)
{
    (void)replication;
    return wheel_batch_short(store, "batch_put_from", keys, buffers, bytes, count, results);
}

int mooncake_store_batch_get_into(void *store, const char **keys, void **buffers,
                                  const size_t *bytes, size_t count, int64_t *results)
{
    return wheel_batch(store, "batch_get_into", keys, buffers, bytes, count, results);
}

int mooncake_store_batch_is_exist(void *store, const char **keys, size_t count, int *results)
{
    return wheel_batch_short(store, "batch_is_exist", keys, NULL, NULL, count, results);
}

int64_t mooncake_store_get_size(void *store, const char *key)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    const int64_t bytes = wheel_number(PyObject_CallMethod(store, "get_size", "s", key));
    PyGILState_Release(state);
    return bytes;
}

int mooncake_store_remove(void *store, const char *key, int force)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    const int64_t status = wheel_number(
        PyObject_CallMethod(store, "remove", "sO", key, force != 0 ? Py_True : Py_False));
    PyGILState_Release(state);
    return (int)status;
}
