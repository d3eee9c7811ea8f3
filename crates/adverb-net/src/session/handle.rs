//! The handles by which the application uses a connection.

use std::ops::Deref;
use std::sync::Arc;

use super::{Origin, enable_reconnect, redialer};
use crate::driver::Driver;

/// A handle of a connection. The connection ends when the last one is dropped.
#[derive(Clone)]
pub(crate) struct Handle {
    driver: Arc<Driver>,
    _last: Arc<LastHandle>,
}

/// The common part of all handles of a connection.
struct LastHandle(Arc<Driver>);

impl Handle {
    /// Returns the first handle of a connection, which reconnects if both sides enable that.
    pub(crate) fn new(driver: Arc<Driver>, origin: Origin) -> Handle {
        enable_reconnect(&driver, origin);
        Handle { driver: Arc::clone(&driver), _last: Arc::new(LastHandle(driver)) }
    }
}

impl Deref for Handle {
    type Target = Arc<Driver>;

    fn deref(&self) -> &Arc<Driver> {
        &self.driver
    }
}

impl Drop for LastHandle {
    fn drop(&mut self) {
        let driver = &self.0;
        if !driver.is_owned() {
            Driver::leak(driver);
        } else if driver.is_lingering() {
            redialer::linger(Arc::clone(driver));
        }
    }
}
