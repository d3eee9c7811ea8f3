"""The names of RDMA devices, from the libibverbs of this process. As a program, prints them."""

import ctypes


def names():
    """Opens each device, and returns their names."""
    verbs = ctypes.CDLL("libibverbs.so.1")
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    verbs.ibv_open_device.restype = ctypes.c_void_p
    count = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    found = []
    for device in devices[: count.value]:
        found.append(verbs.ibv_get_device_name(ctypes.c_void_p(device)).decode())
        context = verbs.ibv_open_device(ctypes.c_void_p(device))
        assert context, "the device can't be opened"
        assert verbs.ibv_close_device(ctypes.c_void_p(context)) == 0
    return found


if __name__ == "__main__":
    print(*names())
