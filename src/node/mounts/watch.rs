//! Waits for changes of the mount table.

#![allow(
    unsafe_code,
    reason = "tokio requires that the descriptor stays open while it is registered"
)]

use std::{fs, future::pending, path::Path};

use tokio::io::{Interest, unix::AsyncFd};

use super::source::open_kernels;
use crate::node::fault::{Fault, errno};

/// Reports changes of the mount table since its creation.
///
/// Create the watch first, then read the table, then wait: no change is missed.
#[derive(Debug)]
pub struct MountWatch {
    kernel: Option<AsyncFd<fs::File>>,
}

// === impl MountWatch ===

impl MountWatch {
    pub(super) fn open(mountinfo: &Path) -> Result<Self, Fault> {
        let fault = |error: std::io::Error| Fault::new("watch", mountinfo, errno(&error));
        let kernel = open_kernels(mountinfo).map_err(fault)?;
        // SAFETY: the file owns its descriptor, always shows the same one, and is dropped only with the registration.
        let watched = kernel.map(|file| unsafe { AsyncFd::register_with_interest(file, Interest::PRIORITY) });
        Ok(Self {
            kernel: watched.transpose().map_err(|error| fault(error.into()))?,
        })
    }

    /// Waits for a mount or unmount since the last call. Pends forever if the table is an ordinary file, which reports
    /// nothing.
    pub async fn changed(&mut self) {
        let Some(kernel) = &self.kernel else {
            return pending().await;
        };
        match kernel.ready(Interest::PRIORITY).await {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime is shutting down.
            Err(_) => pending().await,
        }
    }
}
