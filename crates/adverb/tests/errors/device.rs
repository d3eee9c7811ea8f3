//! Situations that need an RDMA device. The software NIC has no device file, locks no memory, and can't be removed.

/// Shows the situations 9 (no permission for the device file), 10 (memlock limit) and 25 (the device was removed), if
/// there is a device.
pub(crate) fn show_all() {
    println!("9, 10, 25: skipped: they need an RDMA device\n");
}
